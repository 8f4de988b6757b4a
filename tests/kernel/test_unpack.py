"""Wheels whose bytes were changed: every one is unpacked or refused, and none is an error of ours or of the cache."""

from __future__ import annotations

import io
import random
import shutil
import zipfile
from pathlib import Path

import pytest

from kernelmcp_kernel.packages.cache_cap import size_of_files
from kernelmcp_kernel.packages.package_errors import PackageError, PackageInvalid
from kernelmcp_kernel.packages.store import wheel_identity
from kernelmcp_kernel.packages.unpack import unpack

KINDS = {
    "stored": zipfile.ZIP_STORED,
    "deflated": zipfile.ZIP_DEFLATED,
}


def wheel(kind: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", kind) as archive:
        for number in range(3):
            archive.writestr(f"a/b{number}.py", random.Random(number).randbytes(150).hex())
    return stream.getvalue()


def changed(data: bytes, chance: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(chance.choice((1, 2, 5))):
        place = chance.choice((chance.randrange(len(made)), len(made) - 1 - chance.randrange(300)))
        if chance.random() < 0.7:
            made[place] = chance.choice((0, 127, 128, 255, chance.randrange(256)))
        else:
            made[place : place + 4] = chance.choice((b"\xff\xff\xff\xff", b"\0\0\0\x80", b""))
    return bytes(made)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wheel_with_changed_bytes_is_unpacked_or_refused(tmp_path: Path, kind: str) -> None:
    chance, whole = random.Random(kind), wheel(KINDS[kind])
    refused = 0
    for _ in range(400):
        (tmp_path / "x-1-py3-none-any.whl").write_bytes(changed(whole, chance))
        target = tmp_path / "target"
        target.mkdir()
        try:
            unpack(tmp_path / "x-1-py3-none-any.whl", target, 1 << 20)
        except PackageError:
            refused += 1
        shutil.rmtree(target)
    assert 100 < refused < 400


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_wheel_whose_decompression_has_no_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    (tmp_path / "x-1-py3-none-any.whl").write_bytes(wheel(kind))
    (tmp_path / "target").mkdir()
    opened: list[object] = []
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: opened.append(_))
    with pytest.raises(
        PackageInvalid, match=r"'a/b0\.py', which is compressed by another method than deflate; install"
    ):
        unpack(tmp_path / "x-1-py3-none-any.whl", tmp_path / "target", 1 << 20)
    assert opened == []


@pytest.mark.parametrize(
    "name",
    ["x-1-py3-none-../../y.whl", "x\n-1-py3-none-any.whl", "x-1-py3-none-\x1b[0m.whl", "\u0445-1-py3-none-any.whl"],
)
def test_the_name_of_a_wheel_holds_no_path_and_nothing_that_a_terminal_obeys(name: str) -> None:
    with pytest.raises(PackageInvalid):
        wheel_identity(name)


def test_folders_take_disk_space_too(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x/file").write_text("x")
    before = size_of_files(tmp_path)
    (tmp_path / "x/a/b/c").mkdir(parents=True)
    assert size_of_files(tmp_path) - before == 3 * 4096
