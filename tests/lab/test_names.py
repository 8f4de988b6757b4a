"""What a session is called never becomes a path, nor the notebook of another session."""

import json
import uuid
from datetime import datetime
from pathlib import Path

import pytest

from kernelmcp.lab.descriptors import Descriptor
from kernelmcp.lab.names import MAX_STEM_BYTES, Names
from kernelmcp.lab.persons import MAX_CLIENTS, Persons

HOSTILE = [
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    ".",
    "",
    ".hidden",
    "-rf",
    "a/b\\c",
    "a\0b",
    "line\nbreak",
    "\u202egnp.exe",
    "x" * 5000,
    "\N{SNOWMAN}" * 400,
    "ü" * 400,
    "\ud800",
    "con<script>alert(1)</script>",
]


def kernel_id() -> str:
    return str(uuid.uuid4())


def session(name: str, kernel: str | None = None, began: str = "") -> Descriptor:
    return Descriptor(kernel or kernel_id(), name, began, "python", Path(), Path(), None)


@pytest.mark.parametrize("session_id", HOSTILE)
def test_a_notebook_has_a_safe_name_whatever_its_session_is_called(tmp_path: Path, session_id: str) -> None:
    name = Names(tmp_path / "names.json", tmp_path).of(session(session_id))
    file = tmp_path / name
    assert file.resolve().parent == tmp_path.resolve()
    assert name.endswith(".ipynb")
    assert len(name.encode()) <= MAX_STEM_BYTES + len(".ipynb")
    assert not name.startswith((".", "-"))
    assert all(character.isalnum() or character in "-_." for character in name)
    file.touch()


def test_ordinary_names_stay_as_they_are(tmp_path: Path) -> None:
    names = Names(tmp_path / "names.json", tmp_path)
    for session_id in ("analysis", "Umsätze_2026", "データ", "v1.2"):
        assert names.of(session(session_id)) == f"{session_id}.ipynb"


def test_a_session_that_nobody_named_is_called_by_its_time(tmp_path: Path) -> None:
    names, made_up = Names(tmp_path / "names.json", tmp_path), 44 * "0" + "309b"
    began = datetime(2026, 11, 22, 10, 19).astimezone().isoformat()
    assert names.of(session(made_up, began=began)) == "2026-11-22-10.19-309b.ipynb"
    for unknown in ("", "yesterday"):
        assert names.of(session(made_up, began=unknown)).startswith(made_up)


def test_two_sessions_of_one_name_have_two_notebooks_for_ever(tmp_path: Path) -> None:
    first, second, third = kernel_id(), kernel_id(), kernel_id()
    names = Names(tmp_path / "names.json", tmp_path)
    found = [names.of(session("a/b", first)), names.of(session("a-b", second)), names.of(session("A-B", third))]
    assert found[0] == "a-b.ipynb"
    assert len({name.casefold() for name in found}) == 3
    names.save()
    again = Names(tmp_path / "names.json", tmp_path)
    assert [
        again.of(session("A-B", third)),
        again.of(session("a-b", second)),
        again.of(session("a/b", first)),
    ] == found[::-1]
    assert [again.kernel_of(name) for name in found] == [first, second, third]


def test_a_notebook_is_the_same_one_however_its_path_is_written(tmp_path: Path) -> None:
    names, known = Names(tmp_path / "names.json", tmp_path), kernel_id()
    name = names.of(session("a", known))
    for path in (f"/{name}", f"./{name}", f"b/../{name}", f"{name}/", f".//{name}"):
        assert names.kernel_of(path) == known
    assert names.kernel_of(f"b/{name}") is None


def test_a_file_of_a_persons_is_no_sessions_notebook(tmp_path: Path) -> None:
    (tmp_path / "notes.ipynb").write_text("mine")
    assert Names(tmp_path / "names.json", tmp_path).of(session("notes")) != "notes.ipynb"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"a": 1}', b'{"a": "../b.ipynb"}', b"\xff"])
def test_a_damaged_list_of_names_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "names.json").write_bytes(content)
    names = Names(tmp_path / "names.json", tmp_path)
    assert names.kernel_of("../b.ipynb") is None
    assert names.of(session("analysis")) == "analysis.ipynb"


def test_browsers_are_known_after_a_restart_of_lab_and_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "persons.json"
    persons = Persons(file)
    persons.add("one")
    persons.add("x" * 10_000)
    assert "one" in Persons(file)
    assert "two" not in Persons(file)
    assert "x" * 10_000 not in Persons(file)
    file.write_text(json.dumps([str(number) for number in range(MAX_CLIENTS)]))
    persons = Persons(file)
    persons.add("newest")
    assert ("newest" in persons, "0" in persons, "1" in persons) == (True, False, True)
    file.write_text("damaged")
    assert "newest" not in Persons(file)


def test_a_question_that_was_left_is_ended_once_and_one_whose_browser_comes_back_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelmcp.lab.persons.AWAY_SECONDS", 0.0)
    persons = Persons(tmp_path / "persons.json")
    for name in ("gone", "back", "answered", "ended"):
        persons.opened(name)
        persons.asked(name, f"kernel of {name}", name)
    assert persons.take_unanswered() == []
    persons.answered("answered")
    assert persons.ended("ended", "ended") is None
    for name in ("gone", "back", "answered", "ended"):
        persons.closed(name)
    persons.opened("back")
    assert persons.take_unanswered() == ["kernel of gone"]
    assert persons.take_unanswered() == []
    monkeypatch.setattr("kernelmcp.lab.persons.AWAY_SECONDS", 60.0)
    persons.closed("back")
    assert persons.take_unanswered() == []


def test_of_the_cells_that_were_sent_the_newest_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelmcp.lab.persons.MAX_SENT", 2)
    persons = Persons(tmp_path / "persons.json")
    for execution, cell in (("1", "a"), ("2", "b"), ("3", "a"), ("4", "c")):
        persons.sent(execution, cell)
    assert [persons.ended(each, "browser") for each in "1234"] == [None, None, "a", "c"]


def test_thousands_of_names_are_bounded_and_take_no_time_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelmcp.lab.names.MAX_NAMES", 1000)
    names = Names(tmp_path / "names.json", tmp_path)
    last = [kernel_id() for _ in range(3000)][-1000:]
    for one in [*(kernel_id() for _ in range(2000)), *last]:
        names.of(session("same", one))
    names.save()
    assert len(json.loads((tmp_path / "names.json").read_text())) == 1000
    assert [names.kernel_of(names.of(session("same", one))) for one in last] == last
