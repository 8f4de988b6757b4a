"""The log for people: whoever writes a text in it, a line is a line."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from kernelmcp.config.load import load
from kernelmcp.config.models import Config, Values
from kernelmcp.config.settings import Settings
from kernelmcp.observability.logging_setup import configure

FORGED = "x\n2026-01-01T00:00:00Z [info     ] all is well \x1b[2J\x9b\u202e\0"


@pytest.fixture
def log_file(tmp_path: Path) -> Iterator[Path]:
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    configure(Settings(Values(config=Config.model_validate({"logging": {"file": tmp_path / "log"}}))))
    yield tmp_path / "log"
    root.handlers[:] = before
    structlog.reset_defaults()


def test_no_text_of_a_client_is_a_line_of_its_own(log_file: Path) -> None:
    logging.getLogger("mcp.server.sse").warning(f"Received invalid session ID: {FORGED}")
    structlog.stdlib.get_logger("kernelmcp.test").warning("refused", client=FORGED, count=3)
    lines = log_file.read_text("utf-8").split("\n")
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert all("all is well" in line for line in lines[:2])


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_long_text_is_cut(log_file: Path, style: str) -> None:
    configure(Settings(Values(config=Config.model_validate({"logging": {"file": log_file, "format": style}}))))
    long = "x" * 1_000_000
    structlog.stdlib.get_logger("kernelmcp.test").warning("refused", reason=long)
    logging.getLogger("mcp.client").warning(long)
    lines = log_file.read_text("utf-8").splitlines()
    assert [len(line) < 10_000 and "[996,000 more characters]" in line for line in lines] == [True, True]


def test_a_changed_bound_of_the_file_applies_at_once(log_file: Path, tmp_path: Path) -> None:
    config, section = tmp_path / "mcp.toml", f'[logging]\nfile = "{log_file}"\nfile_max_mb = '
    config.write_text(section + "64")
    settings = load(config_file=config, environ={})
    configure(settings)
    log_file.write_bytes(b"x" * 2**21)
    logging.getLogger("kernelmcp.test").warning("one")
    config.write_text(section + "1")
    settings.reload()
    logging.getLogger("kernelmcp.test").warning("two")
    assert "two" in log_file.read_text("utf-8")
    assert log_file.with_name("log.1").stat().st_size > 2**21


def test_a_file_that_is_away_ends_nothing_and_is_used_again(
    log_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a log call raised would end the session's queue, and with it the server."""
    folder = tmp_path / "folder"
    folder.mkdir()
    configure(Settings(Values(config=Config.model_validate({"logging": {"file": folder / "log"}}))))
    log, moved = logging.getLogger("kernelmcp.test"), tmp_path / "moved"
    folder.rename(moved)
    log.warning("lost")
    log.warning("lost as well")
    moved.rename(folder)
    log.warning("kept")
    assert "kept" in (folder / "log").read_text("utf-8")
    assert capsys.readouterr().err.count("FileNotFoundError") == 2
