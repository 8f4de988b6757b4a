"""The wheel, installed from nothing in each usual way, to the first result."""

from __future__ import annotations

from pathlib import Path

import pytest

from .installed import WAYS, Way, first_results, fresh_environment, with_uvx

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("install", WAYS)
def test_an_installation_of_the_wheel_leads_to_a_first_result(install: Way, wheel: Path, run_folder: Path) -> None:
    folder = run_folder / install.__name__
    folder.mkdir()
    env = fresh_environment(folder / "home", run_folder)
    command = install(wheel, folder, env)
    before = files_below(folder)
    # A start fetches nothing: no server is reached.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
    offline = {} if install is with_uvx else nowhere
    [text] = first_results(command, env | offline, ("execute_code", {"code": "6 * 7"}))
    assert text.startswith("42\n")
    new = {path for path in files_below(folder) - before if "__pycache__" not in path.parts}
    data = Path("home", ".local", "share")
    assert {path.relative_to(data).parts[0] for path in new} - {"uv"} == {"kernelmcp"}


def files_below(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir()}
