"""A boot image that is stale or damaged is noticed and replaced; none is ever half-loaded."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import kernelmcp_kernel
from kernelmcp_kernel.languages.python.build import made_with

from ..processes import descendant_pids
from .conftest import running_kernel
from .driver import DEADLINE, Kernel, wait_until

PACKAGE = Path(kernelmcp_kernel.__file__).parent


def truncate(image: Path) -> None:
    os.truncate(image, image.stat().st_size // 2)


def flip_a_byte(image: Path) -> None:
    with image.open("r+b") as file:
        file.seek(image.stat().st_size - 1000)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0xFF]))


def empty(image: Path) -> None:
    image.write_bytes(b"")


def make_stale(image: Path) -> None:
    with image.open("r+b") as file:
        head = file.read(200)
        start = head.index(b'"build_id":"') + len(b'"build_id":"')
        file.seek(start)
        file.write(b"0" * 64)


def damage_the_header(image: Path) -> None:
    with image.open("r+b") as file:
        head = file.read(1_000_000)
        file.seek(head.index(b'"runs":'))
        file.write(b'"runz":')


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of this file's own, with an image that is not stale."""
    root = tmp_path_factory.mktemp("installation")
    copy = root / "lib" / "kernelmcp_kernel"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("_runtime*", "__pycache__"))
    runtime = copy / "_runtime"
    runtime.mkdir()
    for name in ("pyodide", "site"):
        shutil.copytree(PACKAGE / "_runtime" / name, runtime / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("boot.img", "stamp.json"):
        shutil.copy(PACKAGE / "_runtime" / name, runtime / name)
    spec = root / "share" / "kernels" / "kernelmcp"
    spec.mkdir(parents=True)
    start = f"import sys; sys.path.insert(0, {str(copy.parent)!r}); from kernelmcp_kernel.__main__ import main; main()"
    argv = [sys.executable, "-c", start, "-f", "{connection_file}"]
    content = {"argv": argv, "display_name": "copy", "language": "python", "interrupt_mode": "message"}
    (spec / "kernel.json").write_text(json.dumps(content))
    with started(copy) as kernel:
        assert kernel.finish(kernel.send("1 + 1"), seconds=3 * DEADLINE).result == "2"
    return copy


@pytest.fixture
def package(installation: Path) -> Iterator[Path]:
    """The installation, whose image a test may damage."""
    image = installation / "_runtime" / "boot.img"
    good = image.read_bytes()
    yield installation
    for file in made_with(image):
        file.unlink(missing_ok=True)
    image.write_bytes(good)


def started(package: Path) -> AbstractContextManager[Kernel]:
    """A kernel of this installation."""
    return running_kernel(search=package.parent.parent / "share")


DAMAGES = [truncate, flip_a_byte, damage_the_header, empty, make_stale, Path.unlink]
# A build takes 13 s of CPU, and does not read what it replaces. After the other damages, another kernel has just made
# the image. Elsewhere nobody could see that this one waits for it.
BUILT = [flip_a_byte, make_stale, Path.unlink] if sys.platform == "linux" else DAMAGES


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_image_is_replaced_before_the_first_cell(package: Path, damage: Callable[[Path], None]) -> None:
    image = package / "_runtime" / "boot.img"
    other = contextlib.nullcontext() if damage in BUILT else another_builder(image)
    with other:
        damage(image)
        broken = image.read_bytes() if image.exists() else b""
        with started(package) as kernel:
            # An image is built before the cell: 5 s of CPU, which were 20 s at a load of 14.
            assert kernel.finish(kernel.send("1 + 1"), seconds=3 * DEADLINE).result == "2"
    assert image.read_bytes() != broken


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors of a process are seen in /proc")
def test_what_another_kernel_builds_meanwhile_is_used(package: Path) -> None:
    """Variables that are saved with one build are of no use with another, so two kernels must not build one each."""
    image = package / "_runtime" / "boot.img"
    good = image.read_bytes()
    with another_builder(image):
        image.unlink()
        with started(package) as kernel:
            assert kernel.run("1 + 1").result == "2"
    assert image.read_bytes() == good


@contextlib.contextmanager
def another_builder(image: Path) -> Iterator[None]:
    """A kernel that makes the image as it is now, and has done so once another one waits for it: at the end it has."""
    made = Path(shutil.copy(image, image.with_name("good.img")))
    lock = os.open(image.parent, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    waited: list[bool] = []

    def build() -> None:
        waited.append(wait_until(lambda: is_opened(image.parent)))
        made.rename(image)
        os.close(lock)

    builder = threading.Thread(target=build)
    builder.start()
    try:
        yield
    finally:
        builder.join()
    assert waited == [True]


def is_opened(folder: Path) -> bool:
    """By one of the processes that this one has started, to lock it: who confines a guest opens it only as a path."""
    found: list[Path] = []
    for pid in descendant_pids(os.getpid()):
        with contextlib.suppress(OSError):
            for file in Path(f"/proc/{pid}/fd").iterdir():
                flags = Path(f"/proc/{pid}/fdinfo/{file.name}").read_text().split("flags:")[1].split()[0]
                found += [] if int(flags, 8) & os.O_PATH else [file.readlink()]
    return folder in found


def test_guests_of_one_image_draw_different_numbers_from_each_source() -> None:
    """Each by itself: one that is seeded anew must not hide another that is not."""
    sources = ["random.random()", "random.Random().random()", "os.urandom(8)", "uuid.uuid4()", "secrets.token_hex(8)"]
    sources.append("tempfile.mktemp()")
    drawn: list[list[str | None]] = []
    for _ in range(2):  # one after the other: the first may have to build the image
        with running_kernel() as kernel:
            kernel.run("import os, random, secrets, tempfile, uuid")
            drawn.append([kernel.run(source).result for source in sources])
    assert [source for source, *pair in zip(sources, *drawn, strict=True) if pair[0] == pair[1]] == []
