"""A hostile workspace: nothing outside of it is read, written or deleted, and nothing hangs."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kernelmcp.errors import InvalidArgument, PermissionDenied, ResourceLimitExceeded, SessionDamaged
from kernelmcp.files import safe_open
from kernelmcp.files.safe_open import delete_tree
from kernelmcp.files.workspace import Quota, Workspace

QUOTA = Quota(max_bytes=10_000, max_files=200)


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    path = tmp_path / "sandbox"
    (path / "workspace").mkdir(parents=True)
    (path / "tmp").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    return path


@pytest.fixture(params=["openat2", "walk"])
def workspace(sandbox: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Both ways in which a path is opened."""
    if request.param == "walk":
        monkeypatch.setattr(safe_open, "_has_openat2", lambda: False)
    elif not safe_open._has_openat2():
        pytest.skip("this system has no openat2")
    return Workspace(sandbox, QUOTA)


@contextmanager
def in_background(work) -> Iterator[None]:
    """Again and again, until the end of the block."""
    end = threading.Event()

    def loop() -> None:
        while not end.is_set():
            work()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


@pytest.mark.parametrize(
    "path",
    ["../secret", "a/../../secret", "/etc/passwd", "/workspace/../secret", "/workspace", "", ".", "a/", "a\0b",
     "x" * 300, "y/" * 3000 + "z", "/workspaces/x"],
)  # fmt: skip
def test_a_path_that_leads_out_or_is_none_is_refused(sandbox: Path, path: str) -> None:
    workspace = Workspace(sandbox, QUOTA)
    for attempt in (lambda: workspace.read(path), lambda: workspace.write(path, b"x")):
        with pytest.raises((InvalidArgument, PermissionDenied)):
            attempt()
    assert workspace.look([path]) == []
    assert list((sandbox / "workspace").iterdir()) == []


def test_links_are_followed_nowhere(workspace: Workspace, sandbox: Path, tmp_path: Path) -> None:
    inside = sandbox / "workspace"
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "out").symlink_to(tmp_path / "outside")
    (inside / "own.txt").write_text("own")
    (inside / "self").symlink_to("own.txt")
    (inside / "proc").symlink_to("/proc/self/root")
    for path in ("link", "out/secret", "out/new", "self", "out", "proc/etc/passwd"):
        for attempt in (lambda path=path: workspace.read(path), lambda path=path: workspace.write(path, b"evil")):
            with pytest.raises((InvalidArgument, PermissionDenied)):
                attempt()
    assert [entry.path for entry in workspace.listing().files] == ["own.txt"]
    assert [entry.path for entry in workspace.look(["link", "out", "out/secret", "self", "own.txt"])] == ["own.txt"]
    assert (tmp_path / "secret").read_text() == "secret"
    assert [file.name for file in (tmp_path / "outside").iterdir()] == ["secret"]


def test_a_link_to_a_directory_of_the_same_workspace_is_not_followed_either(
    workspace: Workspace, sandbox: Path
) -> None:
    """It could become a link to any other directory after it was looked at."""
    inside = sandbox / "workspace"
    (inside / "real" / "deep").mkdir(parents=True)
    (inside / "real" / "deep" / "file").write_text("own")
    (inside / "link").symlink_to("real")
    (inside / "real" / "inner").symlink_to("deep")
    assert workspace.read("real/deep/file").data == b"own"
    for path in ("link/deep/file", "real/inner/file", "link/deep/new", "real/inner/new"):
        for attempt in (lambda path=path: workspace.read(path), lambda path=path: workspace.write(path, b"evil")):
            with pytest.raises((InvalidArgument, PermissionDenied)):
                attempt()
    assert workspace.look(["link/deep/file", "real/inner/file", "link/deep", "real/inner"]) == []
    assert [entry.path for entry in workspace.listing().files] == ["real/deep/file"]
    assert (inside / "real" / "deep" / "file").read_text() == "own"


def test_a_directory_that_becomes_a_link_while_it_is_used_leads_nowhere(
    workspace: Workspace, sandbox: Path, tmp_path: Path
) -> None:
    inside = sandbox / "workspace"
    (inside / "d").mkdir()
    (inside / "d" / "secret").write_text("own")

    def swap() -> None:
        with suppress(OSError):
            os.rename(inside / "d", inside / "aside")
        with suppress(OSError):
            (inside / "d").symlink_to(tmp_path / "outside")
        delete_tree(inside / "d")
        with suppress(OSError):
            os.rename(inside / "aside", inside / "d")

    with in_background(swap):
        for number in range(300):
            try:
                assert workspace.read("d/secret").data == b"own"
                workspace.write(f"d/new{number % 3}", b"x")
            except (InvalidArgument, PermissionDenied):
                pass
            workspace.listing()
            workspace.look(["d"])
    assert (tmp_path / "outside" / "secret").read_text() == "secret"
    assert [file.name for file in (tmp_path / "outside").iterdir()] == ["secret"]


def test_what_is_no_file_neither_hangs_nor_is_used(workspace: Workspace, sandbox: Path) -> None:
    inside = sandbox / "workspace"
    os.mkfifo(inside / "fifo")
    (inside / "directory").mkdir()
    for path in ("fifo", "directory"):
        with pytest.raises(PermissionDenied, match="not a regular file"):
            workspace.read(path)
        with pytest.raises(PermissionDenied, match="not a regular file"):
            workspace.write(path, b"x")
    assert workspace.look(["fifo"]) == []
    assert workspace.listing().files == []


def test_writing_replaces_a_hard_link_and_not_the_file_behind_it(
    workspace: Workspace, sandbox: Path, tmp_path: Path
) -> None:
    os.link(tmp_path / "secret", sandbox / "workspace" / "hard")
    workspace.write("hard", b"mine")
    assert (tmp_path / "secret").read_text() == "secret"
    assert workspace.read("hard").data == b"mine"


def test_a_listing_that_was_cut_names_the_first_files_and_says_so(workspace: Workspace, sandbox: Path) -> None:
    for number in range(12):
        (sandbox / "workspace" / f"f{number:02}").touch()
    for limit, complete in ((12, True), (10, False)):
        found = workspace.listing(limit=limit)
        assert [entry.path for entry in found.files] == [f"f{number:02}" for number in range(limit)]
        assert (found.complete, found.entries) == (complete, 12)


def test_names_of_any_bytes_are_listed(workspace: Workspace, sandbox: Path) -> None:
    for name in (b"line\nbreak", b"\xff\xfe", "\U0001f600".encode(), b"-rf", b"*"):
        (sandbox / "workspace" / os.fsdecode(name)).write_bytes(b"x")
    found = [entry.path for entry in workspace.listing().files]
    assert sorted(map(os.fsencode, found)) == sorted([b"line\nbreak", b"\xff\xfe", b"\xf0\x9f\x98\x80", b"-rf", b"*"])
    for path in found:
        assert workspace.read(path).data == b"x"


def test_a_huge_sparse_file_is_read_in_part_and_counts_against_the_quota(workspace: Workspace, sandbox: Path) -> None:
    with (sandbox / "workspace" / "sparse").open("wb") as file:
        file.truncate(100 * 2**30)
    piece = workspace.read("sparse", offset=50 * 2**30, limit=1000)
    assert (piece.data, piece.size) == (bytes(1000), 100 * 2**30)
    with pytest.raises(ResourceLimitExceeded):
        workspace.write("other", b"x")


def test_counting_many_files_ends(workspace: Workspace, sandbox: Path) -> None:
    for number in range(500):
        (sandbox / "workspace" / f"f{number:03}").touch()
    found = workspace.listing(limit=10)
    # Counting ended before the last file, so the ten are the first of those that were met.
    paths = [entry.path for entry in found.files]
    assert (len(set(paths)), paths, found.complete) == (10, sorted(paths), False)
    assert found.entries == 2 * QUOTA.max_files
    with pytest.raises(ResourceLimitExceeded, match="files"):
        workspace.write("one-more", b"x")


def test_the_quota_counts_bytes_and_files_and_forgives_what_is_replaced(workspace: Workspace, sandbox: Path) -> None:
    workspace.write("a", bytes(8_000))
    workspace.write("a", bytes(9_000))
    with pytest.raises(ResourceLimitExceeded, match="bytes"):
        workspace.write("b", bytes(2_000))
    (sandbox / "tmp" / "t").write_bytes(bytes(1_000))
    with pytest.raises(ResourceLimitExceeded, match="bytes"):
        workspace.write("b", b"x")
    assert sorted(os.listdir(sandbox / "workspace")) == ["a"]


def nest(top: Path) -> None:
    """Directories nested deeper than a path can say, as renaming makes them."""
    for _ in range(4):
        chain = top / "chain" / "/".join(["n" * 200] * 12)
        chain.mkdir(parents=True)
        (chain / "hidden").write_bytes(bytes(5_000))
        if (top / "tree").exists():
            os.rename(top / "tree", chain / "tree")
        os.rename(top / "chain", top / "tree")


def test_trees_deeper_than_a_path_are_listed_in_part_and_deleted_whole(workspace: Workspace, sandbox: Path) -> None:
    nest(sandbox / "workspace")
    (sandbox / "workspace" / "top.txt").write_text("x")
    (sandbox / "workspace" / "closed").mkdir(mode=0)
    found = workspace.listing()
    assert {Path(entry.path).name for entry in found.files} == {"hidden", "top.txt"}
    assert len(found.files) < 5
    assert not found.complete
    with pytest.raises(ResourceLimitExceeded):
        workspace.write("more", b"x")
    delete_tree(sandbox)
    assert not sandbox.exists()


def test_deleting_follows_no_link(sandbox: Path, tmp_path: Path) -> None:
    (sandbox / "workspace" / "out").symlink_to(tmp_path / "outside")
    (sandbox / "workspace" / "d").mkdir()
    (sandbox / "workspace" / "d" / "out").symlink_to(tmp_path / "outside")
    delete_tree(sandbox)
    assert not sandbox.exists()
    assert (tmp_path / "outside" / "secret").exists()
    (tmp_path / "sandbox").symlink_to(tmp_path / "outside")
    delete_tree(tmp_path / "sandbox")
    assert not (tmp_path / "sandbox").is_symlink()
    assert (tmp_path / "outside" / "secret").exists()


@pytest.mark.parametrize("damage", ["missing", "file", "link"])
def test_a_workspace_that_is_no_directory_is_said(sandbox: Path, tmp_path: Path, damage: str) -> None:
    delete_tree(sandbox / "workspace")
    if damage == "file":
        (sandbox / "workspace").write_text("x")
    elif damage == "link":
        (sandbox / "workspace").symlink_to(tmp_path / "outside")
    workspace = Workspace(sandbox, QUOTA)
    for attempt in (lambda: workspace.read("secret"), lambda: workspace.write("a", b"x"), workspace.listing):
        with pytest.raises(SessionDamaged, match="workspace directory"):
            attempt()


def test_a_file_that_changes_while_it_is_read_gives_what_is_there(workspace: Workspace, sandbox: Path) -> None:
    file = sandbox / "workspace" / "f"
    file.write_bytes(bytes(5_000))

    def resize() -> None:
        os.truncate(file, 10)
        os.truncate(file, 5_000)

    with in_background(resize):
        for _ in range(200):
            assert set(workspace.read("f").data) <= {0}
