"""`kernelmcp build-wheel` says what is missing, and puts the wheel where sessions find it."""

from pathlib import Path

import pytest

from kernelmcp.commands import build_wheel
from kernelmcp_kernel.packages import distribution


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("uv", "uv run --isolated --python 9.9 --extra wheel-build kernelmcp build-wheel "),
        ("pyenv", 'pyenv install --skip-existing 9.9 && "$(pyenv prefix 9.9)/bin/python" -m venv .venv-build && '),
        (None, "python9.9 -m venv .venv-build && .venv-build/bin/pip install '.[wheel-build]' && "),
    ],
)
def test_another_python_than_the_guests_is_told_how_to_get_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: str | None,
    says: str,
) -> None:
    (source := tmp_path / "my package").mkdir()
    (source / "pyproject.toml").write_text("")
    if program is not None:
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build_wheel, "GUEST_PYTHON", (9, 9))
    assert build_wheel.main(source, tmp_path / "home") == 1
    error = capsys.readouterr().err
    assert "is built by Python 9.9, its own version, and this is 3." in error
    assert says in error
    assert f"build-wheel '{source}'" in error


def test_a_path_that_is_not_there_is_told_as_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none.tar.gz"
    assert build_wheel.main(missing, tmp_path / "home") == 1
    assert capsys.readouterr().err == f"kernelmcp: {missing} is not there\n"


def test_the_version_is_the_guests() -> None:
    python = distribution.lock()["info"]["python"]
    assert tuple(map(int, python.split(".")[:2])) == build_wheel.GUEST_PYTHON
