"""`kernelmcp build-wheel PATH`: builds a WebAssembly wheel from a source package, in the local wheel folder from which
every session may install.

It runs the package's build, as `pip install PATH` would: use it only for packages that you trust.
"""

import importlib.util
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from kernelmcp.commands.terminal import fail

# The guest's version. pyodide-build runs on Python 3.12 and later, but builds for the version that it runs on.
GUEST_PYTHON = (3, 14)
_EXTRA = "pip install '.[wheel-build]'"


def main(source: Path, home: Path) -> int:
    """Returns the exit code: 0 if a wheel was built; 1 if something is missing, which it has printed."""
    missing = _missing(source)
    if missing is not None:
        return fail(missing)
    folder = home / "wheels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        return fail(f"{folder} cannot be made: {exc.strerror}")
    before = _wheels(folder)
    done = subprocess.run([_pyodide() or "pyodide", "build", str(source), "--outdir", str(folder)], check=False)
    if done.returncode != 0:
        return fail(f"pyodide build ended with {done.returncode}; its output above says why")
    for wheel in sorted(_wheels(folder) - before):
        sys.stdout.write(f"{folder / wheel[0]}\n")
    return 0


def _missing(source: Path) -> str | None:
    """An obstacle and its remedy, if any."""
    if not source.exists():
        return f"{source} is not there"
    if not any((source / name).is_file() for name in ("pyproject.toml", "setup.py")):
        return f"{source} is not a source package: it has neither pyproject.toml nor setup.py"
    if sys.version_info[:2] != GUEST_PYTHON:
        running, needed = (".".join(map(str, version)) for version in (sys.version_info[:2], GUEST_PYTHON))
        return (
            f"a wheel for the sandbox is built by Python {needed}, its own version, and this is {running}. In the "
            f"folder of kernelmcp's source, type: {_with_python(needed, source)}"
        )
    if importlib.util.find_spec("pyodide_build") is None or _pyodide() is None:
        return "building wheels needs pyodide-build; run: pip install pyodide-build"
    if shutil.which("emcc") is None:
        return (
            "the compiler Emscripten (emcc) is not on the PATH. Install the version that `pyodide config get "
            "emscripten_version` names: git clone https://github.com/emscripten-core/emsdk; ./emsdk install VERSION; "
            "./emsdk activate VERSION; source ./emsdk_env.sh"
        )
    return None


def _with_python(version: str, source: Path) -> str:
    """A command that builds with this version of Python, using an available tool to get it."""
    build = f"kernelmcp build-wheel {shlex.quote(str(source.absolute()))}"
    if shutil.which("uv"):
        return f"uv run --isolated --python {version} --extra wheel-build {build}"
    folder = ".venv-build"
    rest = f"-m venv {folder} && {folder}/bin/{_EXTRA} && {folder}/bin/{build}"
    if shutil.which("pyenv"):
        return f'pyenv install --skip-existing {version} && "$(pyenv prefix {version})/bin/python" {rest}'
    return f"python{version} {rest} (with Python {version} of python.org or your system)"


def _pyodide() -> str | None:
    """The program that pyodide-build installs, beside this Python or on the PATH."""
    beside = Path(sys.executable).with_name("pyodide")
    return str(beside) if beside.is_file() else shutil.which("pyodide")


def _wheels(folder: Path) -> set[tuple[str, int]]:
    return {(file.name, file.stat().st_mtime_ns) for file in folder.glob("*.whl")}
