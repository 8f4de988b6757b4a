"""What must not be lost, and losses that must be said: what cannot be deleted, servers that are killed, cancels."""

import itertools
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from kernelmcp.files import safe_open

pytestmark = pytest.mark.anyio


def test_deleting_for_good_says_what_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    safe_open.delete_for_good(tmp_path / "folder")
    safe_open.delete_for_good(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []


def test_a_tree_is_emptied_while_its_files_move(tmp_path: Path) -> None:
    """As a guest does that runs while its files are deleted."""
    folders = [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "c", tmp_path]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for number in range(3000):
        (folders[number % 3] / f"f{number}").touch()
    ended = threading.Event()

    def move() -> None:
        for number, (one, other) in zip(itertools.count(), itertools.cycle(itertools.permutations(folders, 2))):
            if ended.is_set():
                return
            with suppress(OSError):
                (one / f"f{number % 3000}").rename(other / f"f{number % 3000}")
            with suppress(OSError):
                (tmp_path / "a").rename(tmp_path / "c" / "a")

    mover = threading.Thread(target=move)
    mover.start()
    try:
        safe_open.empty_tree(tmp_path)
    finally:
        ended.set()
        mover.join()
    assert list(tmp_path.iterdir()) == []
