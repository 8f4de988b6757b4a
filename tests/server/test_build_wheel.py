"""`kernelmcp build-wheel` says what is missing, and puts the wheel where sessions find it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelmcp.commands import build_wheel

from ..starting import run_kernelmcp

# Stands for `pyodide build SOURCE --outdir FOLDER`; the real one needs a compiler of a gigabyte.
PYODIDE = """#!/bin/sh
test "$1" = build && test -f "$2/pyproject.toml" && touch "$4/mine-1.0-cp314-cp314-pyemscripten_2026_0_wasm32.whl"
"""


def run(source: Path, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_kernelmcp("build-wheel", str(source), env={**os.environ, "KERNELMCP_HOME": str(home), **environment})


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    done = run(tmp_path, tmp_path / "home")
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not a source package" in done.stderr
    (tmp_path / "pyproject.toml").write_text("")
    done = run(tmp_path, tmp_path / "home", PATH="/nowhere")
    assert done.returncode == 1
    assert "wheel-build" in done.stderr or "Emscripten" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_wheel_lands_in_the_wheel_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"pyodide": PYODIDE, "emcc": "#!/bin/sh\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "pyodide_build.py").write_text("")
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(build_wheel, "GUEST_PYTHON", sys.version_info[:2])
    assert build_wheel.main(tmp_path, tmp_path / "home") == 0
    wheel = tmp_path / "home" / "wheels" / "mine-1.0-cp314-cp314-pyemscripten_2026_0_wasm32.whl"
    assert capsys.readouterr().out == f"{wheel}\n"
    (programs / "emcc").unlink()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin")
    if build_wheel.shutil.which("emcc") is None:
        assert build_wheel.main(tmp_path, tmp_path / "home") == 1
        assert "Emscripten" in capsys.readouterr().err
