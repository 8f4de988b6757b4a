"""Copies of a hostile tree: for forks of sessions, and checkpoints that share unchanged files."""

import errno
import fcntl
import os
import resource
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelmcp.errors import ResourceLimitExceeded
from kernelmcp.files import file_content, home, tree_copy
from kernelmcp.files.home import SandboxDirectory
from kernelmcp.files.safe_open import DIRECTORY, delete_for_good
from kernelmcp.files.tree_copy import FILES, MANIFEST, Copied, copy_tree, save_checkpoint
from kernelmcp.files.workspace import Quota

from ..descriptors import open_below
from .conftest import GUEST_UID

QUOTA = Quota(max_bytes=50_000_000, max_files=10_000)
HOSTILE_NAMES = (b"line\nbreak", b"\xff\xfe", b"\x1b[31m", b" ", b"-rf", b"~", b"files", b"manifest.json", b"a" * 255)


@pytest.fixture(autouse=True)
def no_descriptor_stays_open(tmp_path: Path) -> Iterator[None]:
    yield
    if sys.platform == "linux":
        assert open_below(tmp_path) == []


@pytest.fixture(autouse=True)
def files_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a test would have to wait before it copies what it has written."""
    monkeypatch.setattr(tree_copy, "_SETTLED_NS", -1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (path := tmp_path / "source").mkdir()
    return path


def content(root: Path) -> dict[str, object]:
    """All entries of a tree: the content, mode and mtime of files, mode and mtime of directories, the text of links."""
    found: dict[str, object] = {}
    for path in [root, *root.rglob("*")]:
        status = path.lstat()
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = (status.st_mode, status.st_mtime_ns)
        else:
            found[name] = (path.read_bytes(), status.st_mode, status.st_mtime_ns)
    return found


def before_opening(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[], object]) -> None:
    """Change the tree after an entry was listed, and before it is opened."""
    open_beneath = tree_copy.open_beneath

    def changed(directory: int, parts: tuple[str, ...], *args: Any, **options: Any) -> int:
        if parts == (name,):
            change()
        return open_beneath(directory, parts, *args, **options)

    monkeypatch.setattr(tree_copy, "open_beneath", changed)


def without_clones(monkeypatch: pytest.MonkeyPatch, error: int = errno.EOPNOTSUPP) -> None:
    def refuse(*args: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "ioctl", refuse)


def without_ranges(monkeypatch: pytest.MonkeyPatch, error: int = errno.EXDEV) -> None:
    without_clones(monkeypatch, error)

    def refuse(*args: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)


def with_clones(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Btrfs and XFS."""

    def clone(target: int, request: int, source: int) -> int:
        assert request == 0x40049409
        os.pwrite(target, os.pread(source, 10_000_000, 0), 0)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", clone)


WAYS = {
    "best": lambda monkeypatch: None,
    "ranges": without_clones,
    "reads": without_ranges,
    "seccomp": lambda monkeypatch: without_ranges(monkeypatch, errno.EPERM),
}
CLONES = {**WAYS, "clones": with_clones}


def inode(path: Path) -> int:
    return path.lstat().st_ino


# -- copies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", CLONES)
def test_a_copy_has_the_same_files_links_permissions_and_times(
    source: Path, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    CLONES[way](monkeypatch)
    for name in HOSTILE_NAMES:
        folder = source / os.fsdecode(name)
        folder.mkdir()
        (folder / os.fsdecode(name)).write_bytes(name)
        os.symlink(name, os.fsencode(source) + b"/to " + name[:250])
        (folder / os.fsdecode(name)).chmod(0o640)
        os.utime(folder / os.fsdecode(name), ns=(1, 123_456_789_012_345_678))
    (source / "large").write_bytes(os.urandom(3_000_000))
    (source / "empty").touch()
    (source / " ").chmod(0o750)
    os.utime(source / "~", ns=(1, 1_000_000_001))
    os.utime(source, ns=(1, 2_000_000_001))
    total = 3_000_000 + sum(map(len, HOSTILE_NAMES))
    expected = Copied(files=11, entries=29, total_bytes=total, new_bytes=total)
    assert copy_tree(source, tmp_path / "target", QUOTA) == expected
    assert content(tmp_path / "target") == content(source)
    assert not {inode(path) for path in source.rglob("*")} & {inode(path) for path in (tmp_path / "target").rglob("*")}


def test_a_copy_has_no_special_permissions(source: Path, tmp_path: Path) -> None:
    (source / "program").touch()
    (source / "program").chmod(0o6755)
    (source / "folder").mkdir()
    (source / "folder").chmod(0o3777)
    copy_tree(source, tmp_path / "target", QUOTA)
    assert stat.S_IMODE((tmp_path / "target" / "program").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "target" / "folder").stat().st_mode) == 0o777


def test_links_are_copied_and_never_followed(source: Path, tmp_path: Path) -> None:
    texts = {"etc": "/etc", "up": "../outside", "file": "../outside/secret", "none": "nowhere", "loop": "loop"}
    for name, text in texts.items():
        (source / name).symlink_to(text)
    assert copy_tree(source, tmp_path / "target", QUOTA) == Copied(entries=5)
    assert {path.name: os.readlink(path) for path in (tmp_path / "target").iterdir()} == texts


def test_pipes_and_sockets_are_left_out(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(source / "pipe")
    monkeypatch.chdir(source)
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("socket")
        copied = copy_tree(source, tmp_path / "target", QUOTA)
    assert copied == Copied(entries=2, left_out=2, left_out_names=["pipe", "socket"])
    assert list((tmp_path / "target").iterdir()) == []


def test_files_with_two_names_are_two_files(source: Path, tmp_path: Path) -> None:
    (source / "one").write_bytes(b"same")
    (source / "two").hardlink_to(source / "one")
    assert copy_tree(source, tmp_path / "target", QUOTA).total_bytes == 8
    (tmp_path / "target" / "one").write_bytes(b"changed")
    assert (tmp_path / "target" / "two").read_bytes() == b"same"
    assert (source / "one").read_bytes() == b"same"


def test_a_few_of_many_names_left_out_are_told_printable_and_short(source: Path, tmp_path: Path) -> None:
    for number in range(30):
        os.mkfifo(source / f"\x1b\n\udcff{number:02}{'x' * 200}")
    copied = copy_tree(source, tmp_path / "target", QUOTA)
    assert copied.left_out == 30
    assert len(copied.left_out_names) == tree_copy.MAX_NAMES
    assert all(name.isprintable() and len(name) < 1000 for name in copied.left_out_names)


def test_a_tree_deeper_than_paths_and_descriptors_allow_is_copied(source: Path, tmp_path: Path) -> None:
    depth, name = 3_000, "a name of twenty chr"
    fd = os.open(source, DIRECTORY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        above, fd = fd, os.open(name, DIRECTORY, dir_fd=fd)
        os.close(above)
    os.close(os.open("bottom", os.O_CREAT, dir_fd=fd))
    os.close(fd)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 80, limits[1]))
    try:
        copied = copy_tree(source, tmp_path / "target", QUOTA)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert copied == Copied(files=1, entries=depth + 1)
    fd = os.open(tmp_path / "target", DIRECTORY)
    for _ in range(depth):
        above, fd = fd, os.open(name, DIRECTORY, dir_fd=fd)
        os.close(above)
    assert os.listdir(fd) == ["bottom"]
    os.close(fd)
    for folder in (source, tmp_path / "target"):
        delete_for_good(folder)


def test_an_existing_target_is_refused_and_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").write_text("mine")
    for copy in (copy_tree, save_checkpoint):
        with pytest.raises(FileExistsError):
            copy(source, tmp_path / "target", QUOTA)
    assert (tmp_path / "target" / "file").read_text() == "mine"


def test_a_link_in_the_place_of_the_source_is_not_followed(source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("outside")
    with pytest.raises(OSError):  # noqa: PT011 - ELOOP or ENOTDIR
        copy_tree(tmp_path / "link", tmp_path / "target", QUOTA)
    assert not (tmp_path / "target").exists()


# -- holes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_holes_stay_holes(source: Path, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    WAYS[way](monkeypatch)
    terabyte = 1 << 40
    with (source / "sparse").open("wb") as file:
        for position in (1 << 20, 1 << 30):
            file.seek(position)
            file.write(b"data")
        file.truncate(terabyte)
    copied = copy_tree(source, tmp_path / "target", Quota(max_bytes=2 * terabyte, max_files=1))
    assert copied.total_bytes == terabyte
    with (tmp_path / "target" / "sparse").open("rb") as file:
        status = os.fstat(file.fileno())
        assert (status.st_size, status.st_blocks * 512 < 1 << 20) == (terabyte, True)
        for position in (1 << 20, 1 << 30):
            file.seek(position - 4)
            assert file.read(12) == b"\0\0\0\0data\0\0\0\0"


def test_a_file_system_that_does_not_know_holes_is_read_whole(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_clones(monkeypatch)
    (source / "file").write_bytes(b"x" * 2_000_000 + bytes(1_000_000))

    def refuse(*args: object) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "lseek", refuse)
    copy_tree(source, tmp_path / "target", QUOTA)
    monkeypatch.undo()
    assert content(tmp_path / "target") == content(source)


# -- limits ---------------------------------------------------------------------------------------------------------


def test_a_source_over_a_limit_leaves_no_target(source: Path, tmp_path: Path) -> None:
    for number in range(3):
        (source / f"folder{number}").mkdir()
        (source / f"folder{number}" / "file").write_bytes(bytes(10_000))
        (source / f"folder{number}").chmod(0o500)
    for copy in (copy_tree, save_checkpoint):
        assert copy(source, tmp_path / copy.__name__, Quota(30_000, 6)).entries == 6
        for quota in (Quota(29_999, 6), Quota(30_000, 5)):
            with pytest.raises(ResourceLimitExceeded) as said:
                copy(source, tmp_path / "target", quota)
            assert any(f"{limit:,}" in said.value.message for limit in (29_999, 5))
            assert not (tmp_path / "target").exists()


def test_a_file_of_holes_counts_whole(source: Path, tmp_path: Path) -> None:
    with (source / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ResourceLimitExceeded):
        copy_tree(source, tmp_path / "target", QUOTA)


def test_left_out_entries_count(source: Path, tmp_path: Path) -> None:
    for number in range(6):
        os.mkfifo(source / str(number))
    with pytest.raises(ResourceLimitExceeded):
        copy_tree(source, tmp_path / "target", Quota(1_000, 5))


@pytest.mark.parametrize("way", ["ranges", "reads"])
def test_a_full_disk_leaves_no_target(source: Path, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    WAYS[way](monkeypatch)
    (source / "folder").mkdir()
    (source / "folder" / "file").write_bytes(b"x")

    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(os, "copy_file_range", full, raising=False)
    for copy in (copy_tree, save_checkpoint):
        with pytest.raises(OSError, match="No space left"):
            copy(source, tmp_path / "target", QUOTA)
        assert not (tmp_path / "target").exists()


# -- a source that changes ------------------------------------------------------------------------------------------


def test_a_directory_swapped_for_a_link_is_left_out(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "folder").mkdir()

    def swap() -> None:
        (source / "folder").rmdir()
        (source / "folder").symlink_to(tmp_path / "outside")

    before_opening(monkeypatch, "folder", swap)
    assert copy_tree(source, tmp_path / "target", QUOTA) == Copied(entries=1, left_out=1, left_out_names=["folder"])
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.parametrize("other", ["link", "pipe", "directory", "nothing"])
def test_a_file_swapped_for_something_else_is_left_out(
    source: Path, tmp_path: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := source / "file").write_text("")
    make: dict[str, Callable[[], object]] = {
        "link": lambda: file.symlink_to(tmp_path / "outside" / "secret"),
        "pipe": lambda: os.mkfifo(file),
        "directory": file.mkdir,
        "nothing": lambda: None,
    }
    before_opening(monkeypatch, "file", lambda: (file.unlink(), make[other]()))
    left_out = [] if other == "nothing" else ["file"]
    expected = Copied(entries=1, left_out=len(left_out), left_out_names=left_out)
    assert copy_tree(source, tmp_path / "target", QUOTA) == expected
    assert list((tmp_path / "target").iterdir()) == []


def test_a_link_swapped_for_a_file_is_left_out(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source / "link").symlink_to("x")
    readlink = os.readlink

    def swapped(name: str, *, dir_fd: int) -> str:
        (source / "link").unlink()
        (source / "link").touch()
        return readlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "readlink", swapped)
    copied = copy_tree(source, tmp_path / "target", QUOTA)
    monkeypatch.undo()
    assert copied == Copied(entries=1, left_out=1, left_out_names=["link"])


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_directory_moved_meanwhile_leads_nowhere_else(
    source: Path, tmp_path: Path, is_renamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is deeper than the levels that are kept open, and its new place has a directory with a name that is waited
    for. If the way from the root was renamed too, what is waiting below it is left out."""
    folders = [source]
    for _ in range(60):
        (folders[-1] / "a").mkdir()
        (folders[-1] / "a" / "file").touch()
        (folder := folders[-1] / "z").mkdir()
        folders.append(folder)
    (tmp_path / "outside" / "a").mkdir()
    (tmp_path / "outside" / "a" / "secret").touch()
    moved, renamed = folders[20], folders[10]
    bottom = folders[-1]
    (bottom / "bottom").touch()

    def move() -> None:
        moved.rename(tmp_path / "outside" / "z")
        if is_renamed:
            renamed.rename(renamed.with_name("renamed"))

    before_opening(monkeypatch, "bottom", move)
    copied = copy_tree(source, tmp_path / "target", QUOTA)
    target = tmp_path / "target"
    assert (target / bottom.relative_to(source) / "bottom").exists()
    assert list(target.rglob("secret")) == []
    waiting = ["/".join(["z"] * level + ["a"]) for level in range(19, 9, -1)] if is_renamed else []
    assert (copied.left_out, copied.left_out_names) == (len(waiting), waiting)
    assert len(list(target.rglob("a/file"))) == 60 - len(waiting)


@pytest.mark.parametrize("way", CLONES)
@pytest.mark.parametrize("size", [0, 10, 5_000_000])
@pytest.mark.parametrize("moment", ["before it is copied", "after its holes are known"])
def test_a_file_that_changes_while_it_is_copied_is_a_mixture_of_its_first_size(
    source: Path, tmp_path: Path, way: str, size: int, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    CLONES[way](monkeypatch)
    (source / "file").write_bytes(b"x" * 3_000_000)
    module, name = (tree_copy, "copy_content") if moment == "before it is copied" else (file_content, "_copy_range")
    copy = vars(module)[name]

    def changed(*args: int) -> None:
        os.truncate(source / "file", size)
        copy(*args)

    monkeypatch.setattr(module, name, changed)
    assert copy_tree(source, tmp_path / "target", QUOTA).total_bytes == 3_000_000
    copied = (tmp_path / "target" / "file").read_bytes()
    kept = copied.rstrip(b"\0")
    assert (len(copied), kept) == (3_000_000, b"x" * len(kept))
    assert len(kept) in (min(size, 3_000_000), 3_000_000)


def test_what_a_file_has_grown_by_meanwhile_is_not_copied(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_clones(monkeypatch)
    (source / "file").write_bytes(b"x" * 10)
    written: list[int] = []
    copy_content, ftruncate = tree_copy.copy_content, os.ftruncate

    def grown(*args: int) -> None:
        (source / "file").write_bytes(b"x" * 3_000_000)
        copy_content(*args)

    def measured(fd: int, size: int) -> None:
        written.append(os.fstat(fd).st_size)
        ftruncate(fd, size)

    monkeypatch.setattr(tree_copy, "copy_content", grown)
    monkeypatch.setattr(os, "ftruncate", measured)
    copy_tree(source, tmp_path / "target", QUOTA)
    assert written == [10]


def test_an_entry_that_is_listed_twice_is_copied_once(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a system may list it if it is renamed meanwhile."""
    (source / "file").touch()
    scandir = os.scandir

    class Twice:
        def __init__(self, fd: int) -> None:
            with scandir(fd) as entries:
                self._entries = [*entries] * 2

        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            return iter(self._entries)

        def __exit__(self, *args: object) -> None: ...

    monkeypatch.setattr(os, "scandir", Twice)
    copied = copy_tree(source, tmp_path / "target", QUOTA)
    assert copied == Copied(files=1, entries=1)


# -- permissions ----------------------------------------------------------------------------------------------------


def test_what_may_not_be_read_is_left_out_and_everything_else_copied(users_folder: Path) -> None:
    (source := users_folder / "source").mkdir()
    modes = {"closed": 0o000, "listed": 0o400, "entered": 0o100, "fixed": 0o500}
    for name in modes:
        (source / name).mkdir()
        (source / name / "file").write_text(name)
    (source / "secret").touch(mode=0o000)
    (source / "written").touch(mode=0o200)
    (source / "z").write_text("z")
    for name, mode in modes.items():
        (source / name).chmod(mode)
    copied = save_checkpoint(source, users_folder / "checkpoint", QUOTA)
    assert copied.left_out_names == ["secret", "written", "listed/file", "entered", "closed"]
    files = users_folder / "checkpoint" / FILES
    assert sorted(os.listdir(files)) == ["fixed", "listed", "z"]
    assert {name: stat.S_IMODE((files / name).stat().st_mode) for name in modes if (files / name).exists()} == {
        "fixed": 0o500,
        "listed": 0o400,
    }
    again = save_checkpoint(source, users_folder / "next", QUOTA, base=users_folder / "checkpoint")
    assert again.new_bytes == 0
    assert copy_tree(files, users_folder / "restored", QUOTA, owner=1).left_out == 0  # it is not root
    assert sorted(os.listdir(users_folder / "restored")) == ["fixed", "listed", "z"]
    for folder in ("source", "checkpoint", "next", "restored"):
        delete_for_good(users_folder / folder)


def test_read_only_directories_of_a_failed_copy_are_deleted(users_folder: Path) -> None:
    (source := users_folder / "source").mkdir()
    for name in ("a", "b"):
        (source / name).mkdir()
        (source / name / "file").write_text("x")
        (source / name).chmod(0o500)
    with pytest.raises(ResourceLimitExceeded):
        save_checkpoint(source, users_folder / "target", Quota(max_bytes=1, max_files=10))
    assert os.listdir(users_folder) == ["source"]


@pytest.mark.parametrize("mode", [0o000, 0o100, 0o200, 0o300, 0o400, 0o500, 0o600])
def test_directories_without_permissions_are_deleted(users_folder: Path, mode: int) -> None:
    (folder := users_folder / "folder" / "closed").mkdir(parents=True)
    (folder / "file").touch()
    (folder / "inner").mkdir()
    (folder / "inner" / "file").touch()
    folder.chmod(mode)
    delete_for_good(users_folder / "folder")
    assert os.listdir(users_folder) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")
def test_a_server_that_is_root_reads_nothing_that_the_guest_may_not(source: Path, tmp_path: Path) -> None:
    os.chown(source, GUEST_UID, GUEST_UID)
    for name, owner, mode in (
        ("own", GUEST_UID, 0o600),
        ("other", 0, 0o600),
        ("open", 0, 0o644),
        ("shut", GUEST_UID, 0),
    ):
        (source / name).write_text(name)
        os.chown(source / name, owner, owner)
        (source / name).chmod(mode)
    for name, mode in (("listed", 0o744), ("entered", 0o711), ("both", 0o755)):
        (source / name).mkdir()
        (source / name / "file").write_text(name)
        (source / name).chmod(mode)
    copied = save_checkpoint(source, tmp_path / "checkpoint", QUOTA)
    assert sorted(copied.left_out_names) == ["entered", "listed", "other", "shut"]
    files = tmp_path / "checkpoint" / FILES
    assert {path.lstat().st_uid for path in [files, *files.rglob("*")]} == {0}
    assert copy_tree(files, tmp_path / "restored", QUOTA).left_out == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_server_that_is_root_gives_the_copy_to_its_owner(source: Path, tmp_path: Path) -> None:
    (source / "folder").mkdir()
    (source / "folder" / "file").write_text("x")
    (source / "link").symlink_to("/etc/passwd")
    before = Path("/etc/passwd").stat().st_uid
    copy_tree(source, tmp_path / "target", QUOTA, owner=GUEST_UID)
    target = tmp_path / "target"
    owners = {(path.lstat().st_uid, path.lstat().st_gid) for path in [target, *target.rglob("*")]}
    assert owners == {(GUEST_UID, GUEST_UID)}
    assert Path("/etc/passwd").stat().st_uid == before
    assert content(target) == content(source)


# -- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(source: Path, tmp_path: Path) -> Path:
    """Of three files and a folder that is called as the checkpoint's own."""
    (source / FILES).mkdir()
    for name in ("a", "b", f"{FILES}/c", MANIFEST):
        (source / name).write_text(f"content of {name}")
    save_checkpoint(source, tmp_path / "checkpoint", QUOTA)
    assert content(tmp_path / "checkpoint" / FILES) == content(source)
    return tmp_path / "checkpoint"


def shared(one: Path, other: Path) -> set[str]:
    """The files that two checkpoints share."""
    return {
        name
        for name, found in content(one / FILES).items()
        if isinstance(found, tuple)
        and len(found) == 3
        and (other / FILES / name).is_file()
        and inode(one / FILES / name) == inode(other / FILES / name)
    }


def until_noticed(file: Path, change: Callable[[], object]) -> None:
    """Repeat a change until the file system's clock has advanced."""
    before = file.stat().st_ctime_ns
    for _ in range(1_000_000):
        change()
        if file.stat().st_ctime_ns != before:
            return
    pytest.fail("ctime stands still")


ALL = {"a", "b", f"{FILES}/c", MANIFEST}


def test_unchanged_files_are_shared_with_the_checkpoint_before(source: Path, tmp_path: Path, checkpoint: Path) -> None:
    (source / "b").write_text("changed")
    (source / "new").mkdir()
    (source / "new" / "file").write_text("new")
    second = save_checkpoint(source, tmp_path / "second", QUOTA, base=checkpoint)
    assert shared(tmp_path / "second", checkpoint) == ALL - {"b"}
    assert content(tmp_path / "second" / FILES) == content(source)
    sizes = sum(len(f"content of {name}") for name in ALL - {"b"})
    assert second == Copied(files=5, entries=7, total_bytes=sizes + 10, new_bytes=10, shared=3)
    # The third shares with the second what the second shares with the first.
    third = save_checkpoint(source, tmp_path / "third", QUOTA, base=tmp_path / "second")
    assert third.new_bytes == 0
    assert shared(tmp_path / "third", checkpoint) == ALL - {"b"}
    assert shared(tmp_path / "third", tmp_path / "second") == {*ALL, "new/file"}
    delete_for_good(checkpoint)
    delete_for_good(tmp_path / "second")
    assert content(tmp_path / "third" / FILES) == content(source)


def test_files_are_shared_at_any_depth(source: Path, tmp_path: Path) -> None:
    """Also after directories that the checkpoint before does not have."""
    names: set[str] = set()
    for level in range(40):
        path = "z/" * level
        for folder in ("a", "z"):
            (source / path / folder).mkdir()
        (source / path / "a" / "file").write_text("x")
        names.add(f"{path}a/file")
    save_checkpoint(source, tmp_path / "one", QUOTA)
    (new := source / ("z/" * 30) / "new").mkdir()
    for level in range(40):
        new /= str(level)
        new.mkdir()
    (new / "file").write_text("xx")
    assert save_checkpoint(source, tmp_path / "two", QUOTA, base=tmp_path / "one").new_bytes == 2
    assert shared(tmp_path / "one", tmp_path / "two") == names
    assert content(tmp_path / "two" / FILES) == content(source)


def test_a_change_that_hides_behind_its_old_mtime_is_copied(source: Path, tmp_path: Path, checkpoint: Path) -> None:
    status = (source / "a").stat()

    def change() -> None:
        with (source / "a").open("r+") as file:
            file.write("CONTENT")
        os.utime(source / "a", ns=(status.st_atime_ns, status.st_mtime_ns))

    until_noticed(source / "a", change)
    save_checkpoint(source, tmp_path / "second", QUOTA, base=checkpoint)
    assert shared(tmp_path / "second", checkpoint) == ALL - {"a"}
    assert (tmp_path / "second" / FILES / "a").read_text() == "CONTENT of a"
    assert (checkpoint / FILES / "a").read_text() == "content of a"


def test_another_file_of_the_same_name_size_and_mtime_is_copied(source: Path, tmp_path: Path, checkpoint: Path) -> None:
    status = (source / "a").stat()
    (source / "new").write_text("CONTENT of a")
    os.utime(source / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
    (source / "new").replace(source / "a")
    save_checkpoint(source, tmp_path / "second", QUOTA, base=checkpoint)
    assert shared(tmp_path / "second", checkpoint) == ALL - {"a"}
    assert (tmp_path / "second" / FILES / "a").read_text() == "CONTENT of a"


def test_new_permissions_are_not_shared(source: Path, tmp_path: Path, checkpoint: Path) -> None:
    until_noticed(source / "a", lambda: (source / "a").chmod(0o400))
    save_checkpoint(source, tmp_path / "second", QUOTA, base=checkpoint)
    assert shared(tmp_path / "second", checkpoint) == ALL - {"a"}
    assert content(tmp_path / "second" / FILES) == content(source)


def test_a_file_that_changed_just_before_its_copy_is_copied_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could change again within a tick of the file system's clock."""
    monkeypatch.setattr(tree_copy, "_SETTLED_NS", 10**12)
    (source / "file").write_text("x")
    save_checkpoint(source, tmp_path / "one", QUOTA)
    assert save_checkpoint(source, tmp_path / "two", QUOTA, base=tmp_path / "one").new_bytes == 1


def damage(name: str) -> Callable[[Path], object]:
    def cut(checkpoint: Path) -> None:
        file = checkpoint / MANIFEST
        file.write_bytes(file.read_bytes()[:-10])

    def padded(checkpoint: Path) -> None:
        with (checkpoint / MANIFEST).open("a") as file:
            file.write(" " * 128 * QUOTA.max_files)

    def closed(checkpoint: Path) -> None:
        (checkpoint / MANIFEST).unlink()
        os.mkfifo(checkpoint / MANIFEST)

    def overwritten(text: bytes) -> Callable[[Path], object]:
        return lambda checkpoint: (checkpoint / MANIFEST).write_bytes(text)

    return {
        "no checkpoint": delete_for_good,
        "no manifest": lambda checkpoint: (checkpoint / MANIFEST).unlink(),
        "no files": lambda checkpoint: delete_for_good(checkpoint / FILES),
        "a truncated manifest": cut,
        "an empty manifest": overwritten(b""),
        "another format": overwritten(b'{"1": "x"}'),
        "not JSON": overwritten(b"\xff\0"),
        "deep JSON": overwritten(b"[" * 100_000),
        "a pipe": closed,
        "a manifest over its bound": padded,
    }[name]


@pytest.mark.parametrize(
    "name",
    ["no checkpoint", "no manifest", "no files", "a truncated manifest", "an empty manifest", "another format",
     "not JSON", "deep JSON", "a pipe", "a manifest over its bound"],
)  # fmt: skip
def test_with_a_damaged_base_everything_is_copied(source: Path, tmp_path: Path, checkpoint: Path, name: str) -> None:
    damage(name)(checkpoint)
    copied = save_checkpoint(source, tmp_path / "second", QUOTA, base=checkpoint)
    assert copied.new_bytes == copied.total_bytes > 0
    assert content(tmp_path / "second" / FILES) == content(source)


def test_a_damaged_copy_in_the_base_is_not_shared(source: Path, tmp_path: Path, checkpoint: Path) -> None:
    os.truncate(checkpoint / FILES / "a", 3)
    (checkpoint / FILES / "b").unlink()
    (checkpoint / FILES / "b").symlink_to(source / "b")
    save_checkpoint(source, tmp_path / "second", QUOTA, base=checkpoint)
    assert shared(tmp_path / "second", checkpoint) == ALL - {"a", "b"}
    assert content(tmp_path / "second" / FILES) == content(source)


def test_files_with_too_many_links_are_copied(
    source: Path, tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))

    monkeypatch.setattr(os, "link", refuse)
    copied = save_checkpoint(source, tmp_path / "second", QUOTA, base=checkpoint)
    assert copied.new_bytes == copied.total_bytes
    monkeypatch.undo()
    assert content(tmp_path / "second" / FILES) == content(source)


def test_a_restored_copy_is_independent_of_its_checkpoint(source: Path, tmp_path: Path, checkpoint: Path) -> None:
    before = content(checkpoint / FILES)
    copied = copy_tree(checkpoint / FILES, tmp_path / "restored", QUOTA)
    assert copied.new_bytes == copied.total_bytes
    assert content(tmp_path / "restored") == before == content(source)
    for name in ALL:
        with (tmp_path / "restored" / name).open("r+") as file:
            file.write("overwritten by the guest")
    assert content(checkpoint / FILES) == before


def test_a_failed_checkpoint_leaves_its_base_whole(source: Path, tmp_path: Path, checkpoint: Path) -> None:
    before = content(checkpoint)
    (source / "z").mkdir()
    (source / "z" / "new").write_bytes(bytes(1000))
    with pytest.raises(ResourceLimitExceeded):
        save_checkpoint(source, tmp_path / "second", Quota(max_bytes=1000, max_files=100), base=checkpoint)
    assert not (tmp_path / "second").exists()
    assert content(checkpoint) == before


def test_a_sandbox_has_its_directories_while_files_are_copied_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node grants a guest what is below a directory if that is there when the guest starts, which may be now."""
    seen: list[Path] = []

    def copied(source: Path, target: Path, quota: Quota, *, owner: int | None = None) -> Copied:
        assert sandbox.workspace.is_dir()
        assert (sandbox.path / "tmp").is_dir()
        seen.append(target)
        return copy_tree(source, target, quota, owner=owner)

    monkeypatch.setattr(home, "copy_tree", copied)
    sandbox = SandboxDirectory(tmp_path / "sandbox")
    sandbox.make()
    for name in ("files", "scratch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text(name)
    sandbox.copy_from(tmp_path / "files", tmp_path / "scratch", QUOTA)
    assert not {sandbox.workspace, sandbox.path / "tmp"} & set(seen), "each is replaced at once, when it is whole"
    assert [(each / "a").read_text() for each in (sandbox.workspace, sandbox.path / "tmp")] == ["files", "scratch"]
    assert sorted(os.listdir(sandbox.path)) == ["tmp", "workspace"]
    with pytest.raises(OSError, match="not empty"):
        sandbox.copy_from(tmp_path / "files", tmp_path / "scratch", QUOTA)
    assert sorted(os.listdir(sandbox.path)) == ["tmp", "workspace"], "no draft is left"
