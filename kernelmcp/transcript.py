"""The session as a notebook: every execution is a cell of `notebook.ipynb` (nbformat 4.5).

Cells are kept as encoded JSON, text in them cut, so that a long session costs little memory. Written a moment after the
last change, by a worker thread: never on a call's way. Above: sessions. Below: home.
"""

import json
import secrets
from pathlib import Path
from typing import Any, cast

from kernelmcp.executions import Execution
from kernelmcp.home import write_private
from kernelmcp.outputs import Outputs, Segment

# A person reads the notebook; the whole text is a resource while the execution is kept.
MAX_STREAM_CHARS = 100_000
_FOOTER = json.dumps(
    {
        "metadata": {
            "kernelspec": {"name": "kernelmcp", "display_name": "Python (kernelmcp)", "language": "python"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
)


class Transcript:
    """Cells of one session and their file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._cells: list[str] = []
        self.changed = False
        if file.exists():
            self._load()

    def append(self, execution: Execution) -> None:
        self._cells.append(json.dumps(_cell(execution)))
        self.changed = True

    def to_json(self) -> str:
        cells = ",\n".join(self._cells)
        return f'{{"cells": [\n{cells}\n], {_FOOTER[1:]}\n'

    def save(self) -> None:
        """Blocking; called in a worker thread."""
        self.changed = False
        write_private(self._file, self.to_json())

    def _load(self) -> None:
        try:
            cells: list[Any] = json.loads(self._file.read_text("utf-8"))["cells"]
        except (OSError, ValueError, KeyError, TypeError):
            self._file.replace(self._file.with_suffix(".damaged.ipynb"))
            return
        self._cells = [json.dumps(cell) for cell in cells]


def _cell(execution: Execution) -> dict[str, Any]:
    outputs = execution.outputs
    cell_outputs = [_output(outputs, segment) for segment in outputs.segments]
    if execution.error is not None:
        error = execution.error
        cell_outputs.append(
            {
                "output_type": "error",
                "ename": error.name,
                "evalue": error.value,
                "traceback": error.traceback.splitlines(),
            }
        )
    return {
        "cell_type": "code",
        "id": secrets.token_hex(4),
        # Never trusted: HTML and SVG in the outputs are the guest's, and data to us.
        "metadata": {"trusted": False, "kernelmcp": {"execution_id": execution.id, "status": execution.status}},
        "execution_count": outputs.execution_count,
        "source": execution.code,
        "outputs": cell_outputs,
    }


def _output(outputs: Outputs, segment: Segment) -> dict[str, Any]:
    if segment.name is not None:
        text = outputs.spool(segment.name).read(segment.start, min(segment.end, segment.start + MAX_STREAM_CHARS))
        if segment.end - segment.start > MAX_STREAM_CHARS:
            text += "\n[cut]\n"
        return {"output_type": "stream", "name": segment.name, "text": text}
    display = outputs.displays[segment.start]
    output: dict[str, Any] = {
        "output_type": display.kind,
        "data": display.data,
        "metadata": _untrusted(display.metadata),
    }
    if display.kind == "execute_result":
        output["execution_count"] = outputs.execution_count
    return output


def _untrusted(metadata: dict[str, Any]) -> dict[str, Any]:
    """A guest's metadata without a claim to be trusted, which is a person's to make."""
    return {
        name: _untrusted(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for name, value in metadata.items()
        if name != "trusted"
    }
