"""Builds the guest's runtime: `_runtime/` with Pyodide, the guest's Python packages and the boot image.

It must not know the contents of an image.

    _runtime/pyodide/      from npm, pinned by kernels/package-lock.json
    _runtime/vega/         Vega, which draws charts of altair, from npm, pinned by kernels/vega-lock.json
    _runtime/site/         IPython for the guest, pinned by kernels/requirements-guest.txt
    _runtime/boot.img      the warmed wasm heap, made by host/build_image.mjs
    _runtime/boot.js       the guest's JavaScript as one script, made by host/build_bundle.mjs
    _runtime/boot.code     V8's code of that script
    _runtime/boot.native   V8's machine code of CPython
    _runtime/stamp.json    the inputs that these were made from

Every step works in its own folder or file, which is then renamed into place: an interrupted step changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelmcp_kernel.languages.python.guest_bundle import bundle_of, code_of, native_of
from kernelmcp_kernel.runtime.build_identity import FORMAT, build_id, digest, node_binary, read_stamp
from kernelmcp_kernel.runtime.node import node_flags
from kernelmcp_kernel.runtime.npm import npm_ci, npm_files, run_program

_LOCK_FILES = ("package.json", "package-lock.json", "requirements-guest.txt", "vega-lock.json")
_PYODIDE_FILES = (
    "package.json",
    "pyodide-lock.json",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "pyodide.mjs",
    "python_stdlib.zip",
)
_GUEST_PYTHON = "3.14"
# Of the guest whose compiled code is kept, whatever the settings of who builds.
_TRAINING_MEMORY_MB = 1024
_JSPI = "--experimental-wasm-jspi"

# Files that a guest never needs: programs, manual pages, tests.
_PRUNED_AT_TOP = ("bin", "share")
_PRUNED_ANYWHERE = ("tests", "test", "__pycache__")

# Folders of interrupted builds. The next build deletes them.
_UNFINISHED = "_runtime.building-"
_REPLACED = "_runtime.replaced-"

Log = Callable[[str], None]


def build_runtime(package_dir: Path, log: Log) -> bool:
    """Build `_runtime/` if it is missing, damaged or made from other inputs. Returns True if anything was built.

    Needs the network for packages (npm and pip, as configured on this machine) but not for the image.
    """
    runtime = package_dir / "_runtime"
    _sweep(package_dir)
    fetched = _make_packages(package_dir, runtime, log)
    stamp = read_stamp(runtime)
    wanted = build_id(package_dir)
    image = runtime / "boot.img"
    if stamp.get("image") == [wanted, *map(_size, made_with(image))]:
        return fetched
    log("kernelmcp: building the boot image")
    build_image(package_dir, image)
    _write_stamp(runtime, {**stamp, "image": [wanted, *map(_size, made_with(image))]})
    return True


def made_with(image: Path) -> tuple[Path, ...]:
    """An image and the files that are made with it."""
    bundle = bundle_of(image)
    return image, bundle, code_of(bundle), native_of(bundle)


def build_image(package_dir: Path, image: Path) -> None:
    """Boot a new guest, warm it up and save its heap as `image` (about 5 s), then make the bundle that guests of this
    image are started with, and V8's code of it and of CPython (6 s). Raises BuildError with Node's message."""
    image.parent.mkdir(parents=True, exist_ok=True)
    host, runtime, identity = package_dir / "host", package_dir / "_runtime", build_id(package_dir)
    made = made_with(image)
    unfinished = [file.with_name(f"{file.name}.{os.getpid()}.building") for file in made]
    try:
        settings = (runtime, package_dir / "inside", unfinished[0], identity)
        run_program("the boot image", [node_binary(), _JSPI, host / "build_image.mjs", *settings])
        settings = (runtime, unfinished[0], identity, *unfinished[1:], json.dumps(node_flags(_TRAINING_MEMORY_MB)))
        run_program("the guest's bundle", [node_binary(), _JSPI, host / "build_bundle.mjs", *settings])
        for file, target in zip(unfinished, made, strict=True):
            os.replace(file, target)
    finally:
        for file in unfinished:
            file.unlink(missing_ok=True)


def _make_packages(package_dir: Path, runtime: Path, log: Log) -> bool:
    lock_dir = package_dir.parent
    wanted = digest([FORMAT], lock_dir, [lock_dir / name for name in _LOCK_FILES])
    stamp = read_stamp(runtime)
    if stamp.get("packages") == wanted and stamp.get("files") == _listing_digest(runtime):
        return False
    unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=package_dir))
    try:
        log("kernelmcp: fetching Pyodide and Vega (npm)")
        _fetch_pyodide(lock_dir, unfinished / "pyodide")
        with tempfile.TemporaryDirectory(prefix="kernelmcp-npm-") as scratch:
            shutil.move(npm_files(Path(scratch), lock_dir / "vega-lock.json"), unfinished / "vega" / "node_modules")
        log("kernelmcp: fetching IPython for the guest (pip)")
        _fetch_site(lock_dir, unfinished / "site")
        _write_stamp(unfinished, {"packages": wanted, "files": _listing_digest(unfinished)})
        unfinished.chmod(0o755)  # mkdtemp makes it private, but other users may use this installation
        _put_in_place(unfinished, runtime)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return True


def _fetch_pyodide(lock_dir: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kernelmcp-npm-") as scratch:
        package = npm_ci(Path(scratch), lock_dir) / "pyodide"
        target.mkdir()
        for name in _PYODIDE_FILES:
            shutil.copyfile(package / name, target / name)


def _fetch_site(lock_dir: Path, target: Path) -> None:
    # --platform any: only pure Python packages. The requirements file lists all dependencies (--no-deps), because pip
    # would evaluate environment markers for this machine and not for the guest.
    flags = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--no-compile", "--quiet"]
    flags += ["--disable-pip-version-check", "--no-input", "--no-warn-script-location"]
    guest = [f"--python-version={_GUEST_PYTHON}", "--implementation=py", "--platform=any"]
    source = ["--requirement", lock_dir / "requirements-guest.txt"]
    run_program(
        "the guest's Python packages",
        [sys.executable, "-P", "-m", "pip", "install", "--target", target, *flags, *guest, *source],
    )
    for name in _PRUNED_AT_TOP:
        shutil.rmtree(target / name, ignore_errors=True)
    for name in _PRUNED_ANYWHERE:
        for folder in list(target.rglob(name)):
            shutil.rmtree(folder, ignore_errors=True)
    for record in target.glob("*.dist-info/RECORD"):
        # Without what was pruned: the checksums of programs depend on where they would have been.
        lines = record.read_text("utf-8").splitlines(keepends=True)
        record.write_text("".join(line for line in lines if (target / line.split(",")[0]).exists()), "utf-8")


def _put_in_place(unfinished: Path, runtime: Path) -> None:
    replaced = Path(tempfile.mkdtemp(prefix=_REPLACED, dir=runtime.parent))
    if runtime.exists():
        runtime.rename(replaced / "old")  # a folder cannot be renamed over a non-empty one
    unfinished.rename(runtime)
    shutil.rmtree(replaced, ignore_errors=True)


def _sweep(package_dir: Path) -> None:
    for folder in (*package_dir.glob(f"{_UNFINISHED}*"), *package_dir.glob(f"{_REPLACED}*")):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (package_dir / "_runtime").glob("*.building"):
        file.unlink(missing_ok=True)


def _listing_digest(runtime: Path) -> str:
    """Names and sizes of the downloaded files: enough to detect a missing or truncated one."""
    files = [file for part in ("pyodide", "site", "vega") for file in (runtime / part).rglob("*") if file.is_file()]
    names = sorted(f"{file.relative_to(runtime).as_posix()} {file.stat().st_size}" for file in files)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def _size(file: Path) -> int | None:
    return file.stat().st_size if file.is_file() else None


def _write_stamp(runtime: Path, stamp: dict[str, Any]) -> None:
    unfinished = runtime / "stamp.json.building"
    unfinished.write_text(json.dumps(stamp, indent=1) + "\n", "utf-8")
    os.replace(unfinished, runtime / "stamp.json")
