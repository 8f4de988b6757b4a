"""The code cells of an existing notebook, to be run again. Hostile: a guest may have written it. Blocking."""

import json
import re
from dataclasses import dataclass
from typing import Any

from kernelmcp.errors import InvalidArgument
from kernelmcp.json_bounds import JsonBounds, JsonTooLarge, check_json
from kernelmcp.output.sanitize import MAX_MESSAGE_VALUES, as_dict, as_list, clean, joined

# Limit for the file; most of it is pictures.
MAX_NOTEBOOK_BYTES = 64 * 1024 * 1024
_BOUNDS = JsonBounds(MAX_NOTEBOOK_BYTES, MAX_MESSAGE_VALUES, max_depth=500)
MAX_CELLS = 1_000
MAX_CODE_CHARS = 4_000_000
# A session cannot be split, nor can its outputs be cleared.
_OF_TRANSCRIPT = "Read it (read_file), and write the cells that are still needed to a notebook in a workspace."
# nbconvert's tag for a cell that is expected to fail.
MAY_FAIL = "raises-exception"
# A whole cell that the kernel process passes to the server, also in Markdown fences.
_ASKS_FOR_PAST = re.compile(r"(?:[`~]{3}.*\n\s*)?%(?:checkpoint|restore)(?:[ \t].*)?(?:\n\s*[`~]{3,})?")


@dataclass(frozen=True)
class CodeCell:
    code: str
    may_fail: bool
    """It had failed when the notebook was saved, or is tagged as failing."""

    @property
    def asks_for_past(self) -> bool:
        """It makes a checkpoint or goes back to one. It must not run again: a guest may have written the notebook, to
        replace the checkpoint to which its user will go back."""
        return _ASKS_FOR_PAST.fullmatch(self.code.strip()) is not None


def code_cells(data: bytes, name: str, *, is_transcript: bool = False) -> list[CodeCell]:
    """The code cells in their order, without empty ones. Raises `InvalidArgument` for an invalid notebook.
    `is_transcript`: it is that of a session, and no file of the caller's."""
    try:
        check_json(data, _BOUNDS)
        notebook = as_dict(json.loads(data))
    except JsonTooLarge as exc:
        raise InvalidArgument(
            f"{name} is too large to be read as a notebook",
            _OF_TRANSCRIPT if is_transcript else "Clear its outputs (in JupyterLab: Edit, Clear Outputs).",
        ) from exc
    except (ValueError, RecursionError) as exc:
        raise InvalidArgument(f"{name} is not a notebook: it is not JSON", "Give an .ipynb file.") from exc
    if notebook.get("nbformat") != 4 or not isinstance(notebook.get("cells"), list):
        raise InvalidArgument(
            f"{name} is not a notebook of format 4",
            "Give an .ipynb file; JupyterLab converts older ones when it saves them.",
        )
    cells = [_code_cell(cell) for cell in map(as_dict, as_list(notebook["cells"])) if cell.get("cell_type") == "code"]
    found = [cell for cell in cells if cell.code.strip()]
    if all(cell.asks_for_past for cell in found):
        raise InvalidArgument(
            f"{name} has no code cells" + (" but %checkpoint and %restore" if found else ""),
            "Give a notebook that has some.",
        )
    if len(found) > MAX_CELLS or sum(len(cell.code) for cell in found) > MAX_CODE_CHARS:
        most = f"At most {MAX_CELLS:,} cells with {MAX_CODE_CHARS:,} characters can be run"
        raise InvalidArgument(
            f"{name} has {len(found):,} code cells with {sum(len(cell.code) for cell in found):,} characters",
            f"{most}. {_OF_TRANSCRIPT}" if is_transcript else f"{most}: split it.",
        )
    return found


def _code_cell(cell: dict[str, Any]) -> CodeCell:
    failed = any(as_dict(output).get("output_type") == "error" for output in as_list(cell.get("outputs")))
    tags = as_list(as_dict(cell.get("metadata")).get("tags"))
    return CodeCell(clean(joined(cell.get("source", ""))), failed or MAY_FAIL in tags)
