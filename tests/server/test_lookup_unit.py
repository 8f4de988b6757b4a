"""Searches in a session's log, which read it in pieces: what they find, and how much they read."""

from __future__ import annotations

import io
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmcp.cells import event, lookup

NAMES = st.sampled_from(["a", "ab", "b"])
KINDS = st.sampled_from(["submitted", "output", "late", "cell", "old cell", "note"])


def line_of(kind: str, cell: str) -> bytes:
    if kind == "submitted":
        return event.submitted(cell, event.now(), f'"execution_id": "{cell}"')
    if kind in ("output", "late"):
        return b"".join(event.output(cell, [["text", "stdout", '", "c": "a"']], late=kind == "late"))
    sealed = '"sum": "00000000", ' if kind == "cell" else ""
    name = f'"execution_id": "{cell}"' if kind != "note" else '"left_out": 1'
    return f'{{"cell_type": "code", "id": "x", "metadata": {{"kernelmcp": {{{sealed}{name}}}}}}}'.encode()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(KINDS, NAMES)), st.integers(1, 300), st.integers(0, 20))
def test_what_is_found_is_that_of_reading_line_by_line(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[str, str]], piece_bytes: int, cut: int
) -> None:
    lines = [line_of(*each) for each in written]
    (file := tmp_path_factory.getbasetemp() / "log").write_bytes(
        b"".join(line + b"\n" for line in lines) + line_of("output", "a")[:cut]
    )
    for cell in ("a", "ab", "none"):
        ended, events = None, list[bytes]()
        for (kind, name), line in zip(written, lines, strict=True):
            if name != cell or kind == "note":
                continue
            if "cell" in kind:
                ended, events = line, []
            else:
                events.append(line)
        with patch.object(lookup, "PIECE_BYTES", piece_bytes):
            assert lookup.find(file, cell) == (ended, events)


@settings(deadline=None)
@given(st.lists(st.tuples(KINDS, NAMES)))
def test_cells_without_an_end_are_those_of_reading_line_by_line(written: list[tuple[str, str]]) -> None:
    left: dict[str, list[bytes]] = {}
    lines = [line_of(*each) for each in written]
    for (kind, cell), line in zip(written, lines, strict=True):
        if kind == "submitted":
            left[cell] = [line]
        elif kind == "cell":
            left.pop(cell, None)
        elif kind == "output" and cell in left:
            left[cell].append(line)
    data = b"".join(line + b"\n" for line in lines)
    assert lookup.unfinished(data) == (left, any(kind == "late" for kind, _ in written))


def test_ended_cells_are_passed_over_while_none_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bytes] = []
    real = event.kind_of
    monkeypatch.setattr(event, "kind_of", lambda line: looked.append(line) or real(line))
    ended = (line_of("cell", "a") + b"\n") * 100
    opened = line_of("submitted", "b") + b"\n"
    assert lookup.unfinished(ended + opened + line_of("cell", "b") + b"\n" + ended + opened)[0].keys() == {"b"}
    assert len(looked) == 4, "the first line, and those of the cell that was open"


def test_a_search_holds_a_piece_of_the_log_and_ends_where_its_cell_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    class Log(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            read.append(len(data := super().read(size)))
            return data

    before = line_of("output", "b") + b"\n"
    log = before * (3 * lookup.PIECE_BYTES // len(before)) + line_of("cell", "a") + b"\n" + line_of("late", "a") + b"\n"

    def opened(_: Path) -> Log:
        return Log(log)

    monkeypatch.setattr(lookup, "open_own", opened)
    assert lookup.find(Path(), "a") == (line_of("cell", "a"), [line_of("late", "a")])
    assert sum(read) <= lookup.PIECE_BYTES
    read.clear()
    assert lookup.find(Path(), "unknown") == (None, [])
    assert (max(read), sum(read)) == (lookup.PIECE_BYTES, len(log))
