"""`kernelmcp install`: what it writes into a client's configuration, what it keeps, and what it refuses."""

import sys
from pathlib import Path

import pytest

from kernelmcp.commands.install.entry import launcher

# -- uvx, WSL and Windows -------------------------------------------------------------------------------------------


def test_a_path_in_uvs_cache_is_not_written(tmp_path: Path) -> None:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.with_name("uvx").write_text("")
    for folder in ("archive-v0/Xy12", "environments-v2/kernelmcp-0a"):
        command = launcher({"UV": str(uv)}, f"/home/a/.cache/uv/{folder}")
        assert (command[0], command[-1]) == (str(tmp_path / "bin" / "uvx"), "kernelmcp")
    assert launcher({"PATH": ""}, "/c/uv/archive-v0/x")[0] == "uvx"
    assert "uvx" not in launcher({"UV": str(uv)}, "/home/a/tools/kernelmcp")[0]


def test_on_windows_itself_one_sentence_says_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kernelmcp import cli

    monkeypatch.setattr(sys, "platform", "win32")
    for arguments in (["install", "claude-desktop"], ["demo"], []):
        assert cli.main(arguments) != 0
        said = capsys.readouterr()
        assert (said.out, len(said.err.splitlines()), "WSL" in said.err) == ("", 1, True)
