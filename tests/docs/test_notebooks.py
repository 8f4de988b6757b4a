"""The notebooks run from top to bottom on the sandboxed kernel and show what they say."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from PIL import Image

from tests.pyodide_packages import pyodide_folder

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 300
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


def test_the_analysis_notebook_works_with_the_real_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KERNELMCP_PACKAGES", json.dumps({"pyodide_url": str(pyodide_folder())}))
    outputs = _outputs(_run(ROOT / "notebooks" / "analysis.ipynb"))
    assert [output.get("evalue") for output in outputs if output.output_type == "error"] == []
    pictures = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    sizes = [Image.open(io.BytesIO(base64.b64decode(picture))).size for picture in pictures]
    assert sizes == [(689, 340), (690, 289)], "docs/analysis-months.png and docs/analysis-days.png"
    results = [output.data for output in outputs if output.output_type == "execute_result"]
    assert "2026-04  4216.0  11705.0   6483.0" in results[2]["text/plain"]
    assert "<table" in results[2]["text/html"]
    assert results[-1]["text/plain"] == "True"


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
