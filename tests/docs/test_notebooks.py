"""The notebooks run from top to bottom, each with its kernel, and put out again what is stored in them."""

import base64
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from PIL import Image

from tests.kernel.wheels import DEAD_INDEX, Index, serve_index
from tests.prepared_home import unpacked_home
from tests.pyodide_packages import pyodide_folder

from .test_notebooks_unit import NOTEBOOKS, PLAIN, ROOT, VARIES, code_cells, stored, tags

DEADLINE_SECONDS = 600
SANDBOXED = [name for name in NOTEBOOKS if name not in PLAIN]
NO_PACKAGES = json.dumps({"index_url": DEAD_INDEX, "pyodide_url": "http://127.0.0.1:9/"})
TABULATE = "def tabulate(rows, headers, style, floatfmt):\n    return f'{len(rows)} rows of {headers}'\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with serve_index(tmp_path / "index") as index:
        yield index


def run(name: str) -> Any:
    """By nbclient, beside its file, as JupyterLab would."""
    beside = {"metadata": {"path": str(NOTEBOOKS[name].parent)}}
    return NotebookClient(stored(name), timeout=DEADLINE_SECONDS, resources=beside).execute()


def shown(notebook: Any) -> dict[str, list[Any]]:
    """What each code cell put out; of one whose output varies, nothing."""
    return {cell.id: _shown(cell.outputs) for cell in code_cells(notebook) if VARIES not in tags(cell)}


def _shown(outputs: list[Any]) -> list[Any]:
    found: list[Any] = []
    for output in outputs:
        if output.output_type == "stream":  # a server of times names the day of the week, which is longer on some
            output.text = re.sub(r"(?<='tokens_saved': )[1-9]\d{2}\b", "some hundred", output.text)
        if output.output_type == "error":
            # Not the traceback: it has the cell's number, which a session counts otherwise than a notebook.
            found.append((output.ename, output.evalue))
        elif output.output_type != "stream":
            found.append({mime: _value(mime, value) for mime, value in output.data.items()})
        elif found and isinstance(found[-1], list) and found[-1][0] == output.name:
            found[-1][1] += output.text
        else:
            found.append([output.name, output.text])
    return found


def _value(mime: str, value: Any) -> Any:
    return Image.open(io.BytesIO(base64.b64decode(value))).size if mime == "image/png" else value


def pictures(notebook: Any) -> list[str]:
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    return [mime for output in outputs for mime in output.get("data", {}) if mime.startswith("image/")]


# -- what they put out -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nbconvert_runs_every_sandboxed_notebook_without_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELMCP_PACKAGES", NO_PACKAGES)
    command = [Path(sys.executable).parent / "jupyter", "nbconvert", "--execute", "--to=notebook"]
    files = [NOTEBOOKS[name] for name in SANDBOXED]
    done = subprocess.run(
        [*command, f"--output-dir={tmp_path}", *files],
        capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ran = {name: nbformat.read(tmp_path / f"{name}.ipynb", as_version=4) for name in SANDBOXED}
    for name in SANDBOXED:
        if name != "analysis":
            assert shown(ran[name]) == shown(stored(name)), name
    [installing, using] = [cell for cell in code_cells(ran["tour"]) if "tabulate" in cell.source]
    assert "does not answer" in installing.outputs[-1].evalue
    assert "the table stays plain" in using.outputs[-1].text
    falls_back = ran["analysis"]
    assert "Going on without packages: No module named 'matplotlib'" in code_cells(falls_back)[0].outputs[-1].text
    assert pictures(falls_back) == ["image/svg+xml"] * 2
    assert code_cells(falls_back)[-1].outputs[-1].text == "months.csv has the months: True\n"


@pytest.mark.slow
def test_the_analysis_works_with_the_real_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELMCP_PACKAGES", json.dumps({"pyodide_url": str(pyodide_folder())}))
    with unpacked_home() as home:
        monkeypatch.setenv("KERNELMCP_HOME", str(home))
        notebook = run("analysis")
    assert shown(notebook) == shown(stored("analysis"))
    assert pictures(notebook) == ["image/png"] * 2


@pytest.mark.slow
def test_the_tour_installs_a_package(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add("tabulate", "0.9.0", files={"tabulate/__init__.py": TABULATE})
    monkeypatch.setenv("KERNELMCP_PACKAGES", json.dumps({"index_url": index.url}))
    notebook = run("tour")
    assert shown(notebook) == shown(stored("tour"))
    [installing, using] = [cell for cell in code_cells(notebook) if "tabulate" in cell.source]
    assert installing.outputs[-1].data["text/plain"] == "Successfully installed tabulate-0.9.0"
    assert using.outputs[-1].text == "3 rows of ['seed', 'x', 'y']\n"


@pytest.mark.slow
def test_a_plain_notebook_has_tools_of_public_servers_called() -> None:
    notebook = run("code_mode")
    assert shown(notebook) == shown(stored("code_mode"))


def test_a_plain_notebook_drives_the_server() -> None:
    notebook = run("drive_mcp")
    assert shown(notebook) == shown(stored("drive_mcp"))
    [progress] = [cell for cell in code_cells(notebook) if VARIES in tags(cell)]
    lines = "".join(output.text for output in progress.outputs).splitlines()
    assert set(lines) <= {f"so far: step {step}" for step in range(1, 5)}


def test_the_agents_session_can_be_recorded_again_and_replayed(tmp_path: Path) -> None:
    again = tmp_path / "again.ipynb"
    script = [sys.executable, ROOT / "scripts" / "agent_session.py", again]
    subprocess.run(script, check=True, capture_output=True, timeout=DEADLINE_SECONDS)
    assert again.read_text() == NOTEBOOKS["agent_session"].read_text()
    replay = [sys.executable, "-m", "kernelmcp", "replay", again]
    done = subprocess.run(replay, check=False, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert (done.returncode, "8 code cells ran" in done.stderr) == (0, True), done.stdout + done.stderr
