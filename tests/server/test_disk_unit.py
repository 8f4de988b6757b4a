"""What a principal's sessions may take on disk together, how many are kept, and how they are listed."""

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from kernelmcp.observability.logging_setup import _BoundedFile  # pyright: ignore[reportPrivateUsage]
from kernelmcp.sessions.storage import disk_use

pytestmark = pytest.mark.anyio


def test_a_log_file_that_is_large_becomes_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "log"
    handler = _BoundedFile(file, 1000)
    for number in range(100):
        handler.handle(logging.LogRecord("x", logging.INFO, "", 0, f"{number:04}" * 25, None, None))
    handler.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1"]
    assert max(path.stat().st_size for path in tmp_path.iterdir()) <= 1102
    assert file.read_text().splitlines()[-1] == "0099" * 25


def test_a_file_that_is_deleted_during_the_measurement_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (tmp_path / f"{number}").write_bytes(bytes(5000))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(bytes(5000))
    listed = os.scandir

    def scandir(path: str) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        entries = list(listed(path))
        if (deleted := Path(path, "7")).exists():
            deleted.unlink()
        return nullcontext(iter(entries))

    monkeypatch.setattr(disk_use.os, "scandir", scandir)
    assert disk_use.measure(tmp_path)[0] == 20 * 5000
