"""The shell as an installation has it, or has it not."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import pytest

from kernelmcp_kernel.languages.shell import language
from kernelmcp_kernel.runtime.build_identity import BuildError


def test_without_bashkit_the_shell_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "bashkit" else find_spec(name))
    for found in (language.library, language.readable):
        monkeypatch.setattr(language, found.__name__, cache(found.__wrapped__))
    with pytest.raises(BuildError, match="pip install bashkit"):
        language.LANGUAGE.prepare()


def test_where_the_system_confines_nothing_there_is_no_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in ("landlock", "seccomp"):
        monkeypatch.setattr(
            language,
            "layers",
            lambda missing=missing: {"landlock": True, "seccomp": True, "seatbelt": False, missing: False},
        )
        with pytest.raises(BuildError, match="only where the system confines it"):
            language.LANGUAGE.prepare()


def test_one_module_knows_bashkit() -> None:
    knowing = [
        file.name
        for file in language.FOLDER.rglob("*.py")
        if "import" in file.read_text() and "_bashkit" in file.read_text()
    ]
    assert sorted(knowing) == ["language.py", "shell.py"]


def test_a_guest_may_read_no_folder_that_holds_others() -> None:
    """Of what is installed: bashkit's own folder, and never site-packages of a virtual environment."""
    folders = [path for path in language.readable() if path.is_dir()]
    assert language.FOLDER.resolve() in folders
    assert not any(path.name == "site-packages" or path == Path("/") for path in folders)
