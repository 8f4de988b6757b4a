"""Cells and outputs in the form that a shared document holds. Must not know executions."""

import re
from typing import Any, cast

from pycrdt import Map, Text

# A cell that a person has copied has another id, and is that person's own.
_ID = re.compile(r"k[0-9a-f]{23}")


def is_of_record(ycell: Any) -> bool:
    return "kernelmcp" in ycell["metadata"] and _ID.fullmatch(str(ycell["id"])) is not None


def code_cell(
    name: str, source: str, count: int | None, facts: dict[str, Any], found: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "id": name,
        "source": source,
        "execution_count": number(count),
        # Never trusted. Protected against accidental edits and deletion: it is the record of what was executed.
        "metadata": {"trusted": False, "editable": False, "deletable": False, "kernelmcp": facts},
        "outputs": numbers(found),
    }


def shared_output(output: dict[str, Any]) -> Any:
    shared: dict[str, Any] = numbers(output)
    if shared.get("output_type") == "stream":
        shared["text"] = Text(output["text"])
    return Map(shared)


def write_outputs(youtputs: Any, found: list[dict[str, Any]]) -> None:
    """Replace a cell's outputs. Those that it has already are not touched: a tab draws a changed one again."""
    at = 0
    for output in found[: len(youtputs)]:
        old, new = youtputs[at].to_py(), numbers(output)
        if old != new:
            is_text = old | {"text": ""} == new | {"text": ""}
            if not is_text or not (at == len(youtputs) - 1 or new["text"].startswith(old["text"])):
                break
            change_end(youtputs[at]["text"], old["text"], new["text"])
        at += 1
    if at < len(youtputs):
        if at < len(found) and youtputs[len(youtputs) - 1].get("name") == found[at].get("name", ""):
            at = 0  # a tab adds a stream to what is before it, if the last output that it had was of this stream
        del youtputs[at:]
    youtputs.extend([shared_output(output) for output in found[at:]])


def change_end(shared: Any, old: str, new: str) -> None:
    """Make a shared text that ends with `old` end with `new`. An open tab follows if it is that of the last output."""
    same = len(old)
    if not new.startswith(old):
        pairs = enumerate(zip(old, new, strict=False))
        same = next((at for at, (before, after) in pairs if before != after), min(len(old), len(new)))
    end = len(shared)  # in bytes, as all positions of a shared text
    start = end - len(old[same:].encode())
    shared += new[same:]
    if start < end:
        del shared[start:end]  # only now: a tab takes what is removed before what is added


def numbers(value: Any) -> Any:
    """Convert integers to floats: in a browser, an integer of a shared document is a BigInt, which little code
    expects."""
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [numbers(item) for item in cast("list[Any]", value)]
    return number(value) if isinstance(value, int) and not isinstance(value, bool) else value


def number(value: int | None) -> float | str | None:
    try:
        return None if value is None else float(value)
    except OverflowError:
        return str(value)


def is_draft(ycell: Any) -> bool:
    """True if it is a person's code cell that has not been executed yet."""
    if is_of_record(ycell) or ycell["cell_type"] != "code":
        return False
    is_running = ycell.get("execution_state") == "running"
    return not ycell.get("execution_count") and not len(ycell["outputs"]) and not is_running
