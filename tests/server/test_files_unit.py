"""Files of a session through a real client: in and out, what a cell changed, limits, damage."""

import errno
import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

import kernelmcp
import kernelmcp_kernel
from kernelmcp.cells.cell import Outputs
from kernelmcp.commands.install.configure import _folder
from kernelmcp.config.load import load
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ConfigurationError, ResourceLimitExceeded, ServerError, StorageFailed
from kernelmcp.files import volume_files
from kernelmcp.files.listing import Entry
from kernelmcp.files.paths import as_caller_error
from kernelmcp.files.regular import Piece
from kernelmcp.files.volume_files import MAX_COMPARED_CHARS, VolumeFiles, resembling
from kernelmcp.files.volumes import check_places, check_volumes, kernel_volumes
from kernelmcp.files.workspace import MAX_CHANGED
from kernelmcp.mcp_server.tools.file_sources import FileSources
from kernelmcp.mcp_server.tools.file_tools import _fitting
from kernelmcp.output.spool import IN_MEMORY_BYTES
from kernelmcp.sessions.caller import Caller

# a test may block its own event loop

pytestmark = pytest.mark.anyio

STREAMS = ("stdout", "stderr")


def test_a_volume_that_would_let_guests_out_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    for folder in (home / "sessions", data / "inner"):
        folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(home)
    (latin_1 := Path(os.fsdecode(os.fsencode(data) + b"/\xfc"))).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (private := tmp_path / f"kernelmcp-sandboxes-{os.getuid()}").mkdir()
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(sockets := tmp_path / "sockets"))
    sockets.mkdir()

    def check(**volumes: dict) -> None:
        check_volumes(load(environ={}, overrides={"server": {"home": home}, "volumes": volumes}))

    check(data={"path": data}, inner={"path": data / "inner", "mode": "ro"})
    check(data={"path": data, "mode": "rw"}, inner={"path": data / "inner", "mode": "rw"})
    for volumes in (
        {"data": {"path": home}},
        {"data": {"path": home / "sessions"}},
        {"data": {"path": tmp_path}},
        {"data": {"path": "/"}},
        {"data": {"path": tmp_path / "link"}},
        {"data": {"path": "relative"}},
        {"data": {"path": tmp_path / "missing"}},
        {"data": {"path": latin_1}},
        {"data": {"path": "/proc/self"}},
        {"data": {"path": "/sys"}},
        {"data": {"path": "/dev/shm"}},
        {"data": {"path": private}},
        {"data": {"path": sockets}},
        {"code": {"path": Path(kernelmcp.__file__).parent / "config", "mode": "rw"}},
        {"code": {"path": Path(kernelmcp_kernel.__file__).parent / "inside", "mode": "rw"}},
        {"a/b": {"path": data}},
        {"..": {"path": data}},
        {"data": {"path": data, "mode": "rwx"}},
        {"data": {"path": data, "mdoe": "rw"}},
        {"data": {}},
        {"code": {"path": Path(os.__file__).parent, "mode": "rw"}},
        {"data": {"path": data, "mode": "rw"}, "inner": {"path": data / "inner"}},
    ):
        with pytest.raises(ConfigurationError):
            check(**volumes)


def test_guests_do_not_write_where_programs_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tools := tmp_path / "project" / "bin").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    names = (".ssh", ".config/systemd/user", ".local/bin", ".local/lib/python3.13", ".jupyter", "Library/LaunchAgents")
    of_home = [tmp_path / "user" / name for name in names]
    for folder in of_home:
        folder.mkdir(parents=True)

    def check(path: str | Path, mode: str) -> None:
        volumes = {"data": {"path": path, "mode": mode}}
        check_volumes(load(environ={}, overrides={"server": {"home": tmp_path / "home"}, "volumes": volumes}))

    for folder in (tools, tools.parent, *of_home, "/etc", "/usr/local", "/usr/share"):
        check(folder, "ro")
        with pytest.raises(ConfigurationError, match="where programs"):
            check(folder, "rw")


def test_a_link_in_the_place_of_a_volume_leads_nowhere(tmp_path: Path) -> None:
    outer, secret = tmp_path / "outer", tmp_path / "secret"
    for folder in (outer / "inner", secret):
        folder.mkdir(parents=True)

    def settings() -> Settings:
        volumes = {"outer": {"path": outer, "mode": "rw"}, "inner": {"path": outer / "inner", "mode": "rw"}}
        return load(environ={}, overrides={"server": {"home": tmp_path / "home"}, "volumes": volumes})

    found = settings()
    check_volumes(found)
    check_places(found)
    (outer / "inner").rename(outer / "moved")
    (outer / "inner").symlink_to(secret)
    assert [volume["path"] for volume in kernel_volumes(found)] == [str(outer), str(outer / "inner")]
    with pytest.raises(ConfigurationError, match=r"volumes\.inner leads elsewhere"):
        check_places(found)
    (outer / "inner").unlink()
    (outer / "inner").symlink_to(outer / "inner")
    with pytest.raises(ConfigurationError, match=r"volumes\.inner leads elsewhere"):
        check_places(found)
    (outer / "inner").unlink()
    (outer / "inner").symlink_to(secret)
    with pytest.raises(ConfigurationError, match=r"inside volumes\.outer, where guests can put another"):
        check_volumes(settings())


def test_tools_follow_no_link_above_a_volume(tmp_path: Path) -> None:
    """It lies in another one, where a guest has put the link."""
    outer, secret = tmp_path / "outer", tmp_path / "secret"
    for folder in (outer / "above" / "inner", secret / "inner"):
        folder.mkdir(parents=True)
    (secret / "inner" / "key").write_text("secret")
    volumes = {"outer": {"path": outer, "mode": "rw"}, "inner": {"path": outer / "above" / "inner", "mode": "rw"}}
    found = VolumeFiles(load(environ={}, overrides={"server": {"home": tmp_path / "home"}, "volumes": volumes}))
    found.write("/volumes/inner/key", b"mine")
    assert found.read("/volumes/inner/key").data == b"mine"
    (outer / "above").rename(outer / "moved")
    (outer / "above").symlink_to(secret)
    with pytest.raises(ServerError) as said:
        found.read("/volumes/inner/key")
    assert "secret" not in said.value.to_text()
    with pytest.raises(ServerError):
        found.write("/volumes/inner/new", b"")
    assert found.look(["/volumes/inner/key"]) == []
    with pytest.raises(ServerError) as said:
        found.read("/volumes/inner/none")
    assert "key" not in said.value.to_text()
    assert [path.name for path in (secret / "inner").iterdir()] == ["key"]


def test_many_folders_that_a_guest_names_in_a_volume_are_looked_at_until_there_are_enough_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b", "c"):
        (tmp_path / "data" / folder).mkdir(parents=True)
        for number in range(MAX_CHANGED - 1):
            (tmp_path / "data" / folder / f"{number}").touch()
    volumes = {"data": {"path": tmp_path / "data", "mode": "rw"}}
    files = VolumeFiles(load(environ={}, overrides={"server": {"home": tmp_path / "home"}, "volumes": volumes}))
    scanned: list[str] = []
    scan = volume_files.scan

    def noted(root: int, start: tuple[str, ...], *more: Any) -> None:
        scanned.append("/".join(start))
        scan(root, start, *more)

    monkeypatch.setattr(volume_files, "scan", noted)
    assert len(files.look([f"/volumes/data/{folder}" for folder in "abc"])) == MAX_CHANGED
    assert scanned == ["a", "b"]


def test_folders_without_files_that_a_guest_names_in_a_volume_have_one_limit_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_files, "MAX_SCANNED", 5)
    for folder in ("many/1", "many/2", "many/3", "later"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    (tmp_path / "data" / "later" / "file").touch()
    (tmp_path / "data" / "named").touch()
    volumes = {"data": {"path": tmp_path / "data", "mode": "rw"}}
    files = VolumeFiles(load(environ={}, overrides={"server": {"home": tmp_path / "home"}, "volumes": volumes}))
    names = [f"/volumes/data/{name}" for name in ("many", "./many", "later", "named")]
    assert [entry.path for entry in files.look(names)] == ["/volumes/data/named"]
    assert [entry.path for entry in files.look(names[2:])] == ["/volumes/data/later/file", "/volumes/data/named"]


def test_the_folder_of_the_user_has_the_protection_of_a_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = tmp_path / "user"
    home, folder = user / "kernelmcp-home", user / "folder"
    for made in (
        home,
        folder,
        user / ".ssh",
        user / ".config" / "Claude",
        user / "Library" / "X",
        user / "App",
        user / "App" / "AppData",
        user / "data" / "inner",
    ):
        made.mkdir(parents=True)
    (user / "link").symlink_to(user / ".ssh")
    (user / "loop").symlink_to(user / "loop")
    (user / "file").write_text("")
    monkeypatch.setenv("HOME", str(user))

    def check(text: str | Path, **volumes: dict) -> None:
        environ = {"KERNELMCP_VOLUMES__DEFAULT_VOLUME": str(text)}
        check_volumes(load(environ=environ, overrides={"server": {"home": home}, "volumes": volumes}))

    check(folder)
    check("~/folder")
    check(folder, data={"path": user / "data"})
    for wrong in (
        user,  # it holds the home, .netrc and all else
        "~",
        "/",
        home,
        user / "missing",
        user / "file",
        user / "loop",
        "relative",
        "~nobody-of-this-name/x",
        user / ".ssh",
        user / "link",
        user / ".config" / "Claude",
        user / "Library" / "X",
        user / "App",
        user / "App" / "AppData",
        f"{folder}\n/x",
        f"{folder}*",
        "",
    ):
        with pytest.raises(ConfigurationError, match="default_volume"):
            check(wrong)
    with pytest.raises(ConfigurationError, match="two"):
        check(folder, shared={"path": user / "data"})
    with pytest.raises(ConfigurationError, match=r"read-only, but it is inside volumes\.default_volume"):
        check(user / "data", data={"path": user / "data" / "inner"})


def test_a_folder_that_one_may_not_search_is_checked(users_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELMCP_HOME", str(users_folder / "home"))
    folder = users_folder / "folder"
    folder.mkdir(mode=0o600)
    check_volumes(load(overrides={"volumes": {"default_volume": folder}}))
    for named in (folder, folder / "inner"):
        assert _folder(str(named)) == named


@pytest.mark.parametrize(("path", "advised"), [("data.csv", "reset_workspace"), ("/volumes/a/b", "this folder")])
def test_of_a_full_disk_only_what_lies_on_it_is_to_be_deleted(path: str, advised: str) -> None:
    with pytest.raises(ResourceLimitExceeded) as refused, as_caller_error(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    text = refused.value.to_text()
    assert ("destroy_session" in text) == (advised == "reset_workspace"), "all sessions share one limit"
    assert [word in text for word in ("reset_workspace", "this folder")] == [
        word == advised for word in ("reset_workspace", "this folder")
    ]


async def test_of_a_stream_only_the_piece_that_is_asked_for_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = Outputs((2**22, 2**22), tmp_path)
    text = "".join(f"é{number:06}\n" for number in range(IN_MEMORY_BYTES // 4))
    for name, written in (("stdout", text), ("stderr", "in memory")):
        outputs.apply(["text", name, written])

    async def execution(_caller: Caller, execution_id: str) -> SimpleNamespace:
        return SimpleNamespace(session_id="s", outputs=outputs)

    sizes: list[int] = []
    pread = os.pread

    def counted(fd: int, size: int, offset: int) -> bytes:
        sizes.append(size)
        return pread(fd, size, offset)

    sources = FileSources(Settings(), cast("Any", SimpleNamespace(execution=execution)))
    caller, no_context = Caller("token:a", lambda: None), cast("Any", None)
    out, err = [await sources.find(f"kernelmcp://executions/e/{one}", caller, None, no_context) for one in STREAMS]
    monkeypatch.setattr(os, "pread", counted)
    whole = text.encode()
    assert [await out.read(start, 1_000) for start in (0, 10, len(whole) - 1, len(whole), 10**30)] == [
        Piece(whole[:1_000], len(whole)),
        Piece(whole[10:1_010], len(whole)),  # within a character
        Piece(b"\n", len(whole)),
        Piece(b"", len(whole)),
        Piece(b"", len(whole)),
    ]
    assert await err.read(3, 6) == Piece(b"memory", 9)
    assert max(sizes) <= 1_000
    monkeypatch.setattr(outputs.stdout, "_path", tmp_path / "gone")
    with pytest.raises(StorageFailed, match="could not be read: No such file"):
        await out.read(0, 1)


async def test_a_principal_that_reads_whole_resources_leaves_places_for_others() -> None:
    reading: list[str] = []

    class Reads:
        def __init__(self, principal: str) -> None:
            self.principal = principal

        async def read_resource(self, _uri: str) -> Any:
            reading.append(self.principal)
            await ended.wait()
            return [SimpleNamespace(content="abc")]

    ended = anyio.Event()
    sources = FileSources(Settings(), cast("Any", SimpleNamespace()))
    pieces: list[Piece] = []

    async def read(principal: str, uri: str) -> None:
        source = await sources.find(uri, Caller(principal, lambda: None), None, cast("Any", Reads(principal)))
        pieces.append(await source.read(1, 1))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(read, "a", "kernelmcp://something")
        await anyio.wait_all_tasks_blocked()
        assert reading == ["a", "a"]
        tasks.start_soon(read, "b", "kernelmcp://something")
        tasks.start_soon(read, "a", "kernelmcp://views/latest?code=1&wait=1")
        await anyio.wait_all_tasks_blocked()
        assert reading == ["a", "a", "b", "a"]
        ended.set()
    assert pieces == [Piece(b"b", 3)] * 7


def test_resembling_names_are_found_by_their_beginnings() -> None:
    """A guest chooses the names: a comparison of long ones takes time in proportion to the square of their lengths."""
    beginning, other = "abcd" * (MAX_COMPARED_CHARS // 4), "wxyz" * MAX_COMPARED_CHARS
    assert resembling(beginning + "x" * 150, [other, beginning + "y" * 150]) == [beginning + "y" * 150]
    assert resembling("Report.csv", ["other.txt", "report.CSV"]) == ["report.CSV"]


def test_a_list_of_names_fits_a_result_twice() -> None:
    names = ["\x01" * 100 + str(number) for number in range(1000)]
    files = _fitting([Entry(name, 1, 0) for name in names])
    assert 0 < 2 * len(json.dumps([file.path for file in files])) < 250_000
    assert len(_fitting([Entry(f"data/part-{number}.csv", 1, 0) for number in range(1000)])) == 1000
