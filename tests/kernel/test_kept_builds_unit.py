"""Builds of guests that are kept in the home: which are there, and what their guests must understand."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelmcp_kernel.languages import kept_builds
from kernelmcp_kernel.languages.javascript.language import JavaScript
from kernelmcp_kernel.languages.kept_builds import MAX_BUILDS, PROTOCOL, find, keep
from kernelmcp_kernel.languages.python.language import Python
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.places import PACKAGE
from kernelmcp_kernel.settings import settings

ONE, OTHER = "1" * 64, "2" * 64
LANGUAGES = Path(__file__).parents[2] / "docs" / "languages.md"
# By file: the functions to which requests are handed.
REQUESTS = {
    "execute_cell.py": {"execute"},
    "operations.py": {"complete", "inspect", "is_complete", "environment"},
    "comms.py": {"comm_message", "comm_info"},
    "run.py": {"run_program"},
}
PARAMETERS = {
    "execute": "code silent store_history user_expressions allow_stdin execution_count parent idents control views",
    "complete": "code cursor_pos",
    "inspect": "code cursor_pos detail_level",
    "is_complete": "code",
    "environment": "",
    "comm_message": "msg_type content metadata buffers parent",
    "comm_info": "target_name",
    "run_program": "argv cwd environment stdin output",
}
OPTIONS = {
    "Python": """build_id folder how_to_see_more image keep_globals keep_imports needed_by offered packages quota
 runtime seed tmp volumes working_directory workspace""",
    "JavaScript": "offered quota tmp volumes working_directory workspace",
}
CALLS = {"Python": "fetch input install kill ran_program run_command tools", "JavaScript": "fetch tools"}
WORDS = """LimitExceeded ServerUnavailable ToolDenied ToolError ToolTimeout allow_stdin apart arguments argv body
buffers bytes call calls cancelled capture changed clear_output code comm comm_close comm_done comm_msg comm_open
command complete concurrent_calls cursor_pos cwd digest display_data ename end_background environment error evalue
execute execute_result execution_count exit_code fetch files folder follow gone headers host_calls id ids image
input inspect install interrupt interrupted is_base is_complete is_plain kill kind load_state lost merged metadata
method module mount number offset ok output parent password prompt python ran_program ready reason reasons
redirected replies reply requirements reseed result run_command run_program save_state servers set_environment
set_quota signal silent since state status stderr stdin stdout store_history stream timeout token tool_cancel
tool_reply tool_request tools tools_offer_reply tools_offer_request traceback unset update_display_data url
user_expressions value"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    settings.cache_clear()
    yield tmp_path / "home"
    settings.cache_clear()


@pytest.fixture
def parts(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "installed" / "deep").mkdir(parents=True)
    (tmp_path / "installed" / "deep" / "module").write_text("module")
    (tmp_path / "image").write_text("image")
    return {"host": tmp_path / "installed", "_runtime/boot.img": tmp_path / "image"}


def used(found: Path | None) -> Path:
    assert found is not None
    return found


def builds(home: Path) -> list[str]:
    return [each.name for each in (home / "builds").iterdir() if each.name != ".lock"]


def test_a_kept_build_outlives_its_installation(parts: dict[str, Path]) -> None:
    keep("python", ONE, "abi", parts)
    (parts["host"] / "deep" / "module").unlink()
    parts["_runtime/boot.img"].unlink()
    found = find("python", ONE, "abi")
    assert found is not None
    assert (found / "host" / "deep" / "module").read_text() == "module"
    assert (found / "_runtime" / "boot.img").read_text() == "image"


def test_it_is_found_by_its_language_its_id_and_what_it_shares_with_packages(parts: dict[str, Path]) -> None:
    keep("python", ONE, "abi", parts)
    assert find("javascript", ONE, "abi") is None
    assert find("python", OTHER, "abi") is None
    assert find("python", ONE, "another abi") is None


def test_one_of_another_protocol_is_not_found(parts: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    keep("python", ONE, "abi", parts)
    monkeypatch.setattr(kept_builds, "PROTOCOL", PROTOCOL + 1)
    assert find("python", ONE, "abi") is None


def test_it_is_kept_once(home: Path, parts: dict[str, Path]) -> None:
    keep("python", ONE, "abi", parts)
    [folder] = home.glob("builds/python-*")
    os.utime(folder, (0, 0))
    keep("python", ONE, "abi", {})
    assert sorted(each.name for each in folder.iterdir()) == ["_runtime", "host"]
    assert folder.stat().st_mtime > 0, "it counts as used"


def test_those_that_were_used_last_stay(home: Path, parts: dict[str, Path]) -> None:
    ids = [f"{number:064x}"[::-1] for number in range(1, MAX_BUILDS + 2)]
    keep("javascript", ONE, "", parts)
    for number, each in enumerate(ids[:-1]):
        keep("python", each, "abi", parts)
        os.utime(used(find("python", each, "abi")), (number, number))
    os.utime(used(find("javascript", ONE, "")), (0, 0))
    assert find("python", ids[0], "abi")
    keep("python", ids[-1], "abi", parts)
    assert [find("python", each, "abi") is not None for each in ids] == [True, False, *[True] * (MAX_BUILDS - 1)]
    assert find("javascript", ONE, "") is not None
    assert len(builds(home)) == MAX_BUILDS + 1, "nothing is left of the others"


def test_a_copy_serves_where_nothing_can_be_linked(parts: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    parts["_runtime/boot.img"].chmod(0o640)
    keep("python", ONE, "abi", parts)
    found = find("python", ONE, "abi")
    assert found is not None
    kept = found / "_runtime" / "boot.img"
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == ("image", 0o640)


def test_nothing_is_kept_of_what_cannot_be_read(home: Path, parts: dict[str, Path]) -> None:
    with pytest.raises(OSError, match="missing"):
        keep("python", ONE, "abi", {**parts, "vega": home / "missing"})
    assert find("python", ONE, "abi") is None
    assert builds(home) == []


def test_what_another_kernel_is_keeping_is_left_to_it(home: Path, parts: dict[str, Path]) -> None:
    (home / "builds").mkdir(parents=True)
    with (home / "builds" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not keep("python", ONE, "abi", parts)
        assert builds(home) == []
    assert keep("python", ONE, "abi", parts)
    assert find("python", ONE, "abi") is not None


def test_an_installation_that_was_replaced_meanwhile_is_not_kept(home: Path, parts: dict[str, Path]) -> None:
    assert not keep("python", ONE, "abi", parts, lambda: False)
    assert find("python", ONE, "abi") is None
    assert builds(home) == []


def test_folders_that_nobody_may_change_or_enter_can_be_deleted_and_read(parts: dict[str, Path]) -> None:
    (parts["host"] / "deep").chmod(0o500)
    keep("python", ONE, "abi", parts)
    folder = used(find("python", ONE, "abi"))
    assert [each.stat().st_mode & 0o777 for each in (folder, folder / "host", folder / "host" / "deep")] == [0o755] * 3


def test_what_a_killed_kernel_left_goes_after_an_hour(home: Path, parts: dict[str, Path]) -> None:
    old, new = home / "builds" / ".unfinished-old", home / "builds" / ".unfinished-new"
    for each in (old, new):
        (each / "host").mkdir(parents=True)
    os.utime(old, (0, 0))
    keep("python", ONE, "abi", parts)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_guest_of_another_user_can_pass_to_it(
    home: Path, parts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep("python", ONE, "abi", parts)
    assert (home / "builds").stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("KERNELMCP_GUEST_UID", "12345")
    settings.cache_clear()
    assert find("python", ONE, "abi") is not None
    assert (home / "builds").stat().st_mode & 0o777 == 0o711


def test_guests_of_kept_builds_understand_what_they_are_sent(tmp_path: Path) -> None:
    """If this fails, think of a guest from before the change: does it understand the request or the option, does
    somebody answer its call? If not, increase PROTOCOL. Then record here what is said now."""
    found = [
        function
        for file in (PACKAGE / "inside" / "kernelmcp_guest").rglob("*.py")
        for function in ast.parse(file.read_text()).body
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name in REQUESTS.get(file.name, ())
    ]
    assert {each.name: [one.arg for one in each.args.args] for each in found} == _split(PARAMETERS)
    sandbox = SandboxDirectory(tmp_path / "sandbox")
    languages = {"Python": Python(), "JavaScript": JavaScript()}
    given = {name: sorted(json.loads(each.launch(sandbox).program[-1])) for name, each in languages.items()}
    assert given == _split(OPTIONS)
    assert {name: sorted(each.host_calls) for name, each in languages.items()} == _split(CALLS)
    protocol = LANGUAGES.read_text().partition("\n## Guest protocol\n")[2]
    rows = [line.split("|") for line in protocol.splitlines() if line.startswith("| `")]
    assert sorted({word for row in rows for cell in row for word in re.findall(r"`(\w+)`", cell)}) == WORDS.split()
    assert PROTOCOL == 1


def _split(texts: dict[str, str]) -> dict[str, list[str]]:
    return {name: text.split() for name, text in texts.items()}
