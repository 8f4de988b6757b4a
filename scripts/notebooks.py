"""Runs notebooks of `notebooks/`, each with the kernel that it names, and stores what they put out:

python scripts/notebooks.py [FILE ...]

agent_session.ipynb is made by `scripts/agent_session.py`. analysis.ipynb is to be run where pandas and matplotlib can
be had. What is stored names no machine and no moment; a cell whose output is different each time has the tag `varies`.
"""

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
MADE_OTHERWISE = "agent_session.ipynb"
DEADLINE_SECONDS = 300


def run(file: Path) -> Any:
    """The notebook with its outputs."""
    notebook = nbformat.read(file, as_version=4)
    beside = {"metadata": {"path": str(file.parent)}}
    NotebookClient(notebook, timeout=DEADLINE_SECONDS, record_timing=False, resources=beside).execute()
    return notebook


def store(notebook: Any, file: Path) -> None:
    """Raises `nbformat.ValidationError`."""
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
    nbformat.validate(notebook)
    nbformat.write(notebook, file)


def joined(outputs: list[Any]) -> list[Any]:
    """What was printed in several pieces is one output: how many they are depends on the moment."""
    found: list[Any] = []
    for output in outputs:
        if found and output.output_type == "stream" == found[-1].output_type and output.name == found[-1].name:
            found[-1] = nbformat.v4.new_output("stream", name=output.name, text=found[-1].text + output.text)
        else:
            found.append(output)
    return found


def main(files: list[str]) -> None:
    chosen = [Path(file) for file in files] or sorted(NOTEBOOKS.glob("*.ipynb"))
    for file in chosen:
        if file.name != MADE_OTHERWISE:
            store(run(file), file)
            sys.stdout.write(f"{file.name}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
