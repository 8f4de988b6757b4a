"""The log for people: whoever writes a text in it, a line is a line."""

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

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
def test_what_a_client_has_sent_is_in_no_validation_error(log_file: Path, style: str) -> None:
    configure(Settings(Values(config=Config.model_validate({"logging": {"file": log_file, "format": style}}))))
    try:
        try:
            jsonrpc_message_adapter.validate_json('{"jsonrpc": "2.0", "id": 3, "result": "my secret"}')
        except ValidationError as error:
            raise ValueError("as mcp") from error
    except ValueError as error:
        logging.getLogger("mcp.server.sse").exception("Failed to parse message")
        logging.getLogger("mcp.server.sse").error("in a group", exc_info=ExceptionGroup("tasks", [error]))
    circle, other = ValueError("a circle"), ValueError("the other")
    circle.__cause__, other.__cause__ = other, circle
    logging.getLogger("asyncio").error("all is well", exc_info=circle)
    written = log_file.read_text("utf-8")
    assert all(text in written for text in ("Failed to parse message", "in a group", "all is well", "a circle"))
    assert "my secret" not in written


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_long_text_is_cut(log_file: Path, style: str) -> None:
    configure(Settings(Values(config=Config.model_validate({"logging": {"file": log_file, "format": style}}))))
    long = "x" * 1_000_000
    structlog.stdlib.get_logger("kernelmcp.test").warning("refused", reason=long)
    logging.getLogger("asyncio").warning(long)
    lines = log_file.read_text("utf-8").splitlines()
    assert [len(line) < 10_000 and "[996,000 more characters]" in line for line in lines] == [True, True]


def test_a_client_that_does_not_read_stderr_stops_nothing_and_is_told_what_it_missed(
    log_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    with open(writer, "w") as stderr, open(reader) as unread:
        monkeypatch.setattr("sys.stderr", stderr)
        configure(Settings(Values(config=Config())))
        log = logging.getLogger("kernelmcp.test")
        busy = threading.Thread(
            target=lambda: [log.warning(f"line {n} " + "x" * 500) for n in range(3000)], daemon=True
        )
        busy.start()
        busy.join(60)
        assert not busy.is_alive()
        read = 0
        while "dropped" not in (line := next(unread)):
            assert f"line {read} " in line
            read += 1
        assert read >= 2000
        assert "[warning" in line
        assert f" {3000 - read} lines" in line


def test_the_last_lines_are_there_at_the_end(log_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with open(writer, "w") as stderr, open(reader, "rb", 0) as read:
        monkeypatch.setattr("sys.stderr", stderr)
        configure(Settings(Values(config=Config())))
        for n in range(50):
            logging.getLogger("kernelmcp.test").warning(f"line {n}")
        for handler in logging.getLogger().handlers:
            handler.flush()
        os.set_blocking(reader, False)
        assert len(read.read(100_000).splitlines()) == 50


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
