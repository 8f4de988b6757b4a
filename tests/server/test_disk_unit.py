"""What a principal's sessions may take on disk together, how many are kept, and how they are listed."""

import logging
from pathlib import Path

import pytest

from kernelmcp.observability.logging_setup import _BoundedFile  # pyright: ignore[reportPrivateUsage]

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
