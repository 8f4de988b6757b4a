"""The notebooks run from top to bottom on the sandboxed kernel and show what they say."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 60
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.name)
def test_a_notebook_is_for_our_kernel_and_brings_no_output(file: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    assert notebook.metadata.kernelspec.name == "kernelmcp"
    assert [cell.id for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")] == []


def _run(file: Path) -> Any:
    return NotebookClient(
        nbformat.read(file, as_version=4), timeout=DEADLINE_SECONDS, kernel_name="kernelmcp"
    ).execute()


def _outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def test_the_demo_notebook_shows_what_it_says() -> None:
    outputs = _outputs(_run(ROOT / "notebooks" / "demo.ipynb"))
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert printed == (
        "Python on emscripten\nstep 1 of 3\nstep 2 of 3\nstep 3 of 3\ncaught: division by zero\n"
        "the sandbox cannot start processes: use Python instead\n"
    )
    results = [output.data for output in outputs if output.output_type == "execute_result"]
    assert [data["text/plain"] for data in results if len(data) == 1] == [
        "[0, 1, 4, 9, 16, 25, 36, 49, 64, 81]",
        "285",
        "[0, 2, 4, 6]",
        "10",
        "('/workspace', 'kept with the session')",
    ]
    assert {kind for data in results for kind in data} == {"text/plain", "image/svg+xml", "image/png"}
    assert [output.ename for output in outputs if output.output_type == "error"] == ["ZeroDivisionError"]
