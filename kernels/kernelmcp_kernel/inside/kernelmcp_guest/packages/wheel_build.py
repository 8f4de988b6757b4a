"""Builds a wheel from a source, by its build backend's hook, in a separate process (host/wheel.mjs).

There are no programs in WebAssembly. A build that starts Python runs it in this process; one that starts a compiler is
told that there is none, which optional extensions allow for.

Not imported by the package kernelmcp_guest: it is a standalone module.
"""

import contextlib
import importlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Iterator
from typing import Any, ClassVar

_SOURCE, _MADE = "/build/source", "/build/made"
_PYTHON = "/usr/bin/python3"
# Raised by distutils and similar tools if there is no compiler.
_OF_COMPILERS = {
    "CCompilerError", "CompileError", "ExecError", "DistutilsExecError", "LinkError", "LibError", "PreprocessError",
    "UnknownFileError", "PlatformError", "DistutilsPlatformError",
}  # fmt: skip
_MAX_SAID_CHARS = 120


class Popen(subprocess.Popen[Any]):
    """Runs Python to completion, in this process. Raises FileNotFoundError for anything else."""

    missing: ClassVar[list[str]] = []

    def __init__(self, args: Any, *_: Any, **options: Any) -> None:
        given: list[Any] = list(args) if isinstance(args, list | tuple) else [args]  # pyright: ignore[reportUnknownArgumentType]
        words = [os.fsdecode(word) for word in given]
        self.args, self.returncode, self.stdin = args, None, None  # pyright: ignore[reportAttributeAccessIssue]
        is_text = any(options.get(name) for name in ("text", "universal_newlines", "encoding", "errors"))
        self._kind: Any = io.StringIO if is_text else io.BytesIO
        if options.get("shell") or not re.fullmatch(r"(.*/)?python[0-9.]*", words[0]):
            self.missing.append(words[0])
            raise FileNotFoundError(2, "No such file or directory", words[0])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.returncode = _run_python(words[1:], options.get("cwd"), options.get("env"))
        self.stdout = self._stream(out, options.get("stdout"))
        self.stderr = self._stream(err, options.get("stderr"))

    def _stream(self, printed: io.StringIO, wanted: Any) -> Any:
        if wanted != subprocess.PIPE:
            return None
        return self._kind(printed.getvalue() if self._kind is io.StringIO else printed.getvalue().encode())

    def __del__(self, *_: Any) -> None:
        """Nothing is left to clean up."""

    def __exit__(self, *_: Any) -> None:
        """It has already ended."""

    def communicate(self, *_: Any, **__: Any) -> Any:
        return tuple(stream and stream.read() for stream in (self.stdout, self.stderr))

    def poll(self) -> Any:
        return self.returncode

    def wait(self, timeout: Any = None) -> Any:
        return self.returncode


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    argv, path, cwd, environ = sys.argv, list(sys.path), os.getcwd(), dict(os.environ)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environ)


def _run_python(words: list[str], cwd: Any, env: Any) -> int:
    while words and re.fullmatch(r"-[BEIOPSsuvx]+|-W.+", words[0]):
        words = words[1:]
    with _as_before():
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        os.chdir(cwd or ".")
        try:
            if not words:
                return 2
            if words[0] == "-c":
                sys.argv = ["-c", *words[2:]]
                exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
            elif words[0] == "-m":
                sys.argv = words[1:]
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                sys.argv = words
                sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
                runpy.run_path(words[0], run_name="__main__")
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(bool(end.code))
        except BaseException:  # noqa: BLE001  # it is another program's
            traceback.print_exc()
            return 1
    return 0


def build(job_json: str) -> str:
    """Build the wheel of a job: {archive, points, backend, paths, look_for_more, left_out}. Returns JSON: {wheel},
    {requires}, {compiler: true} or {error}."""
    job = json.loads(job_json)
    try:
        return json.dumps(_build(job))
    except BaseException as error:  # noqa: BLE001  # a build may raise anything
        return json.dumps(_reason(error, job["left_out"]))


def _build(job: dict[str, Any]) -> dict[str, Any]:
    sys.dont_write_bytecode = True
    sys.path[:0] = job["points"]
    for folder in (_SOURCE, _MADE):
        os.makedirs(folder)
    with tarfile.open(job["archive"]) as archive:
        archive.extractall(_SOURCE, filter="data")
    os.unlink(job["archive"])
    (top,) = os.listdir(_SOURCE)
    os.chdir(os.path.join(_SOURCE, top))
    os.environ |= {"SOURCE_DATE_EPOCH": "315532800", "PATH": "/usr/bin"}
    sys.stdin, sys.stdout, sys.stderr = (open(os.devnull, mode) for mode in ("r", "w", "w"))  # noqa: SIM115
    sys.executable, sys.argv = _PYTHON, ["setup.py"]
    subprocess.Popen = Popen
    os.system = lambda command: 127 << 8
    time.sleep = lambda seconds, /: None  # the guest's own asks the host; and nothing else goes on meanwhile
    sys.path[:0] = [os.path.join(os.getcwd(), path) for path in job["paths"]]
    module, _, inner = job["backend"].partition(":")
    backend: Any = importlib.import_module(module)
    for name in filter(None, inner.split(".")):
        backend = getattr(backend, name)
    if job["look_for_more"] and hasattr(backend, "get_requires_for_build_wheel"):
        with _as_before():
            requires = list(map(str, backend.get_requires_for_build_wheel()))
        if requires:
            return {"requires": requires}
    name = os.path.basename(backend.build_wheel(_MADE))
    return {"wheel": os.path.join(_MADE, name)}


def _reason(error: BaseException, left_out: list[str]) -> dict[str, Any]:
    """The reason: a missing compiler, or the last error message."""
    seen: BaseException | None = error
    for _ in range(20):
        if seen is None:
            break
        kinds = {kind.__name__ for kind in type(seen).__mro__}
        missing = isinstance(seen, ImportError) and str(seen.name).partition(".")[0].lower() in left_out
        if kinds & _OF_COMPILERS or missing:
            return {"compiler": True}
        seen = seen.__cause__ or seen.__context__
    if Popen.missing:
        return {"error": f"it starts {Popen.missing[-1][:_MAX_SAID_CHARS]}"}
    if isinstance(error, SystemExit) and not isinstance(error.code, str):
        return {"error": ""}  # its earlier output is not kept
    lines = str(error).strip().splitlines()
    return {"error": (lines[-1] if lines else type(error).__name__)[:_MAX_SAID_CHARS]}
