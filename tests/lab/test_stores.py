"""Damaged files of Lab's own are put aside or begun anew."""

import json
import sqlite3
from pathlib import Path

import pytest

from kernelmcp.lab.shared import stores
from kernelmcp.lab.shared.stores import check_notebook, check_stores

GOOD = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"7", b'{"cells": 7, "nbformat": 4}', b'{"cells": [7], "nbformat": 4}', b"[" * 50_000, b"\xff"],
)
def test_what_is_no_notebook_is_put_aside(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.ipynb"
    file.write_bytes(content)
    check_notebook(file)
    assert not file.exists()
    assert (tmp_path / "a.damaged.ipynb").read_bytes() == content


def test_a_link_is_no_notebook(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(json.dumps(GOOD))
    (tmp_path / "a.ipynb").symlink_to(tmp_path / "secret")
    check_notebook(tmp_path / "a.ipynb")
    assert not (tmp_path / "a.ipynb").is_symlink()
    assert (tmp_path / "secret").exists()


def test_a_notebook_stays(tmp_path: Path) -> None:
    file = tmp_path / "a.ipynb"
    check_notebook(file)
    file.write_text(json.dumps(GOOD))
    check_notebook(file)
    assert json.loads(file.read_text()) == GOOD


@pytest.mark.parametrize("damage", ["text", "zeros", "too large", "a page"])
def test_damaged_histories_are_begun_anew_together(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = tmp_path / stores.HISTORIES
    with sqlite3.connect(documents) as opened:
        opened.execute("CREATE TABLE a (b)")
        opened.executemany("INSERT INTO a VALUES (?)", [(100 * str(number),) for number in range(1000)])
    opened.close()
    (tmp_path / stores.SESSIONS).write_text("{}")
    check_stores(tmp_path)
    assert documents.exists()
    if damage == "too large":
        monkeypatch.setattr(stores, "MAX_STORE_BYTES", 10)
    elif damage == "a page":
        content = documents.read_bytes()
        documents.write_bytes(content[: -2 * 4096] + 4096 * b"\xff" + content[-4096:])
    else:
        documents.write_bytes(b"no database" * 1000 if damage == "text" else bytes(8192))
    check_stores(tmp_path)
    assert list(tmp_path.iterdir()) == []
