"""What must not be lost, and losses that must be said: what cannot be deleted, servers that are killed, cancels."""

from pathlib import Path

import pytest

from kernelmcp.files import safe_open

pytestmark = pytest.mark.anyio


def test_deleting_for_good_says_what_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    safe_open.delete_for_good(tmp_path / "folder")
    safe_open.delete_for_good(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []
