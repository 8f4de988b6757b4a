"""The notebooks run from top to bottom, each with its kernel, and put out again what is stored in them."""

import base64
import getpass
import json
import re
import socket
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {file.stem: file for file in sorted((ROOT / "notebooks").glob("*.ipynb"))}
PLAIN = ("code_mode", "drive_mcp")
# A cell that fails, and one whose output is not the one that is stored.
FAILS, VARIES = "raises-exception", "varies"
# What a kernel's own Python calls its folders.
GUESTS_FOLDERS = ("/home/pyodide", "/lib/python3")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))


def stored(name: str) -> Any:
    return nbformat.read(NOTEBOOKS[name], as_version=4)


def tags(cell: Any) -> list[str]:
    return cell.metadata.get("tags", [])


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


# -- what is stored ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_as_it_ran(name: str) -> None:
    notebook = stored(name)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == ("python3" if name in PLAIN else "kernelmcp")
    assert any(cell.outputs for cell in code_cells(notebook))
    failed = [cell for cell in code_cells(notebook) if any(one.output_type == "error" for one in cell.outputs)]
    assert [cell.id for cell in failed if FAILS not in tags(cell)] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_names_no_machine_no_user_and_no_time(name: str) -> None:
    notebook = stored(name)
    for cell in code_cells(notebook):
        assert "execution" not in cell.metadata, "nbclient's times"
        text = json.dumps([cell.metadata, [one for one in cell.outputs if "image/png" not in one.get("data", {})]])
        for folder in GUESTS_FOLDERS:
            text = text.replace(folder, "")
        assert re.findall(r"/(?:home|root|tmp|Users|work|opt|private)/[\w/.-]+", text) == [], cell.id
        assert re.findall(r"\d{4}-\d\d-\d\dT\d\d:\d\d", text) == [], cell.id
        named = {socket.gethostname(), getpass.getuser()} - {"root", "localhost", "runner", "user"}
        assert [one for one in named if len(one) > 3 and re.search(rf"\b{re.escape(one)}\b", text)] == [], cell.id


def test_the_readme_shows_every_notebook_and_the_charts_that_are_stored() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert [name for name in NOTEBOOKS if f"(notebooks/{name}.ipynb)" not in readme] == []
    outputs = [output for cell in code_cells(stored("analysis")) for output in cell.outputs]
    charts = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    files = [ROOT / "docs" / f"analysis-{name}.png" for name in ("months", "days")]
    assert [base64.b64decode(chart) for chart in charts] == [file.read_bytes() for file in files]
