"""A guest, a client and a server of tools that mean harm: what each may break is its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelmcp_kernel.runtime.offered_files import fill

# -- the files


def test_an_offer_of_links_is_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        fill(target, source)
    (source / "passwd").unlink()
    (source / "crm").symlink_to("/etc")
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        fill(target, source)
    assert os.listdir(target) == []


def test_files_that_somebody_may_write_are_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    for name, mode in (("kept", 0o444), ("open", 0o644)):
        (source / name).write_text(name)
        (source / name).chmod(mode)
    fill(target, source)
    assert (target / "kept").samefile(source / "kept")
    assert not (target / "open").samefile(source / "open")
    assert (target / "open").stat().st_mode & 0o777 == 0o444


def test_a_folder_takes_the_place_of_a_file_and_back(tmp_path: Path) -> None:
    one, two, target = (tmp_path / name for name in ("one", "two", "target"))
    target.mkdir()
    (one / "a").mkdir(parents=True)
    (one / "a" / "b").write_text("1")
    two.mkdir()
    (two / "a").write_text("2")
    for source in (one, two, one):
        fill(target, source)
        found = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
        assert found == {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    fill(target, None)
    assert os.listdir(target) == []
