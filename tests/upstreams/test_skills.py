"""Skills on the host: which files of a workspace may be promoted, whose sessions have them, and who is asked."""

import ast
import hashlib
import io
import os
import stat
import threading
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from kernelmcp.cli import main
from kernelmcp.errors import InvalidArgument
from kernelmcp.sessions.storage.record import Record, now
from kernelmcp.upstreams.skills import MAX_BYTES, MAX_SKILLS, PromotedSkills, Skill, parse

GOOD = (
    '"""Totals of deals."""\n\n\ndef total(deals):\n    return sum(deals)\n\n\n'
    "def test_total():\n    assert total([2]) == 2\n"
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def session(home: Path, name: str, principal: str = "local", **skills: str) -> Path:
    """A session as a server leaves it; its folder of skills."""
    prefix = "" if principal == "local" else f"{hashlib.sha256(principal.encode()).hexdigest()[:16]}~"
    directory = home / "sessions" / f"{prefix}{name}"
    directory.mkdir(parents=True)
    sandbox = f"abc-{len(list((home / 'sessions').iterdir())):x}"
    fields = {"created_at": now(), "last_used_at": now(), "sandboxes": [sandbox]}
    Record(session_id=name, principal=principal, **fields).write(directory)  # pyright: ignore[reportArgumentType]
    folder = home / "sandboxes" / sandbox / "workspace" / "skills"
    folder.mkdir(parents=True)
    for skill, source in skills.items():
        (folder / f"{skill}.py").write_text(source)
    return folder


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(text))


def test_a_person_sees_the_code_and_says_yes(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session(home, "work", totals=GOOD)
    answer(monkeypatch, "y\n")
    assert main(["skills", "promote", "work", "totals"]) == 0
    shown = capsys.readouterr().out
    assert GOOD.strip() in shown
    assert "skills/totals.py, 9 lines:" in shown
    assert PromotedSkills(home).read("local") == {"totals": GOOD}


@pytest.mark.parametrize("text", ["n\n", "\n", "", "no\n", "yesterday\n"])
def test_anything_but_yes_promotes_nothing(home: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    session(home, "work", totals=GOOD)
    answer(monkeypatch, text)
    assert main(["skills", "promote", "work", "totals"]) == 1
    assert PromotedSkills(home).read("local") == {}


def test_without_a_terminal_only_yes_promotes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session(home, "work", totals=GOOD)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["skills", "promote", "work", "totals"]) == 1
    assert PromotedSkills(home).read("local") == {}
    assert main(["skills", "promote", "work", "totals", "--yes"]) == 0
    assert PromotedSkills(home).read("local") == {"totals": GOOD}


def test_a_promoted_skill_is_of_one_principal(home: Path) -> None:
    session(home, "work", principal="token:alice", totals=GOOD)
    assert main(["skills", "promote", "work", "totals", "--yes"]) == 1
    assert main(["skills", "promote", "work", "totals", "--yes", "--principal", "token:alice"]) == 0
    promoted = PromotedSkills(home)
    assert [promoted.read(who) for who in ("token:alice", "local", "token:bob", "../local")] == [
        {"totals": GOOD},
        {},
        {},
        {},
    ]
    assert main(["skills", "remove", "totals"]) == 1
    assert main(["skills", "remove", "totals", "--principal", "token:alice"]) == 0
    assert promoted.read("token:alice") == {}


def test_the_file_is_nobodys_to_write_and_the_folder_is_private(home: Path) -> None:
    PromotedSkills(home).add("local", parse("totals", GOOD.encode()))
    (file,) = (home / "skills").rglob("*.py")
    assert stat.S_IMODE(file.stat().st_mode) == 0o444
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_change_in_the_workspace_changes_nothing_and_is_listed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = session(home, "work", totals=GOOD, other=GOOD, broken="def f(:")
    assert main(["skills", "promote", "work", "totals", "--yes"]) == 0
    before = PromotedSkills(home).stamps()
    (folder / "totals.py").write_text(GOOD.replace("2", "3"))
    assert PromotedSkills(home).read("local") == {"totals": GOOD}
    assert PromotedSkills(home).stamps() == before
    capsys.readouterr()
    assert main(["skills", "list"]) == 0
    listed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert listed == [
        "In every session of local:",
        "totals Totals of deals.",
        "In sessions (kernelmcp skills promote SESSION NAME):",
        "work broken (no valid skill)",
        "work other Totals of deals.",
        "work totals Totals of deals. (differs from the promoted one)",
    ]
    assert main(["skills", "promote", "work", "totals", "--yes"]) == 0
    assert PromotedSkills(home).stamps() != before


@pytest.mark.parametrize("kind", ["symlink", "directory", "fifo", "folder_link", "large", "missing"])
def test_a_hostile_file_is_refused(home: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = session(home, "work")
    secret = tmp_path / "secret.py"
    secret.write_text(GOOD)
    file = folder / "totals.py"
    if kind == "symlink":
        file.symlink_to(secret)
    elif kind == "directory":
        file.mkdir()
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder_link":
        folder.rmdir()
        (tmp_path / "elsewhere").mkdir()
        secret.rename(tmp_path / "elsewhere" / "totals.py")
        folder.symlink_to(tmp_path / "elsewhere")
    elif kind == "large":
        file.write_text(GOOD + "#" * MAX_BYTES)
    assert main(["skills", "promote", "work", "totals", "--yes"]) == 1
    assert "Totals" not in capsys.readouterr().out
    assert main(["skills", "list"]) == 0
    assert PromotedSkills(home).read("local") == {}


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../totals", "a/b", "/etc/passwd", "a\0b", "a.b", "_x", "1x", "import", "é", "x" * 65, "x\n"],
)
def test_a_name_that_is_no_module_is_refused(home: Path, name: str) -> None:
    session(home, "work", totals=GOOD)
    assert main(["skills", "promote", "work", "--yes", "--", name]) == 1
    with pytest.raises(InvalidArgument):
        parse(name, GOOD.encode())
    assert not (home / "skills").exists()


@pytest.mark.parametrize("name", ["..", "../work", "nowhere", ""])
def test_a_session_that_is_none_is_refused(home: Path, name: str) -> None:
    session(home, "work", totals=GOOD)
    assert main(["skills", "promote", name, "totals", "--yes"]) == 1


@pytest.mark.parametrize(
    "source",
    [
        "def f(:",
        "\0",
        b"\xff\xfe".decode("latin-1") + "\udcff",
        f"{GOOD}\n# \x1b[2J\x1b[H seen as nothing",
        f"{GOOD}\n# \u202e gnihtemos",
        f"{GOOD}\nx = '\u3164'",
        f"{GOOD}\n\u3164 = 1",
        f"{GOOD}\nt\u043etal = 1",
        f"{GOOD}\nx = 1 \r y = 2",
        f"{GOOD}\n# tag \U000e0041",
        "x = " + "(" * 10_000,
    ],
)
def test_code_that_is_not_what_it_looks_like_is_refused(source: str) -> None:
    with pytest.raises(InvalidArgument):
        parse("totals", source.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(
    "source", ['"""Only words."""\n', "def test_x():\n    pass\n", '""" """\ndef test_x(): pass\n']
)
def test_a_skill_says_what_it_does_and_has_a_test(home: Path, source: str) -> None:
    session(home, "work", totals=source)
    assert main(["skills", "promote", "work", "totals", "--yes"]) == 1
    assert PromotedSkills(home).read("local") == {}


@pytest.mark.parametrize(
    "source",
    [" \\\r\n", "\r'''\r\n'''", "\t\\\n\r\n \\\r\n\r\n0", "x = 1if 1else 2\n'\\\x1b'\n"],
    ids=["a statement without an end", "a text without an end", "an odd indent", "what warns"],
)
def test_a_file_that_reads_otherwise_is_none_and_the_others_are_listed(
    home: Path, capfd: pytest.CaptureFixture[str], source: str
) -> None:
    folder = session(home, "work", totals=GOOD)
    (folder / "odd.py").write_bytes(source.encode())
    assert main(["skills", "list"]) == 0
    shown, errors = capfd.readouterr()
    assert "totals               Totals of deals." in shown
    assert errors == ""
    with pytest.raises(InvalidArgument):
        parse("odd", source.encode())


@pytest.mark.parametrize(
    "gap",
    [
        *("\n" * 12, "\n" + " \t\n" * 40, "x = 1;" + " " * 81),
        *("\n" + "#\n" * 40, "x = 1 + \\\n" + "\\\n" * 20 + "1;", "x = 1;" + f"{' ' * 80}1;" * 40),
    ],
)
def test_code_that_a_reader_would_have_to_look_for_is_refused(gap: str) -> None:
    with pytest.raises(InvalidArgument, match="so many blanks at line"):
        parse("totals", f"{GOOD}{gap}import os\n".encode())
    parse("totals", f"{GOOD}{gap[:6]}\nimport os\n".encode())


@pytest.mark.parametrize("encoding", ["utf-7", "unicode_escape", "latin-1"])
def test_a_file_that_python_would_read_in_another_encoding_is_refused(encoding: str) -> None:
    hidden = "# +AAo-import os" if encoding == "utf-7" else "# \\u000aimport os"
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        parse("totals", f"# -*- coding: {encoding} -*-\n{GOOD}\n{hidden}\n".encode())


def test_words_in_other_languages_are_fine() -> None:
    found = parse("totals", GOOD.replace("Totals", "Größe, 取引, हिन्दी").encode())
    assert found == Skill(
        "totals", GOOD.replace("Totals", "Größe, 取引, हिन्दी"), "Größe, 取引, हिन्दी of deals.", ("test_total",)
    )


@pytest.mark.parametrize(
    ("docstring", "about"),
    [
        (r"Weekly \ud83d\udcca report.", "Weekly report."),
        (r"Weekly.\r# \x1b[31m\u202e\u3164\U000e0041 now", "Weekly. # [31m now"),
        ("x" * 2_000, "x" * 1_020 + " ..."),
        (r"\ud800\u2800", ""),
    ],
    ids=["surrogates", "controls", "long", "nothing to see"],
)
def test_a_description_has_only_what_a_reader_sees(docstring: str, about: str) -> None:
    assert parse("totals", GOOD.replace("Totals of deals.", docstring).encode()).about == about


def test_threads_take_turns_with_the_filters_of_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    real, before, both = ast.parse, list(warnings.filters), threading.Barrier(2)

    def meeting(source: str) -> ast.Module:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # for one that does not come
        return real(source)

    with monkeypatch.context() as patched:
        patched.setattr(ast, "parse", meeting)
        threads = [threading.Thread(target=parse, args=(name, GOOD.encode())) for name in ("first", "second")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert both.broken
    assert warnings.filters == before


def test_a_skill_is_parsed_once_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    real = ast.parse
    sources = [f"{GOOD}\n# {number}" for number in (1, 1, 2, 1)]
    with monkeypatch.context() as patched:
        patched.setattr(ast, "parse", lambda source: (parsed.append(source), real(source))[1])
        found = [parse("once", source.encode()).source for source in sources]
    assert found == sources
    assert parsed == [sources[0], sources[2]]


def test_there_is_a_most(home: Path) -> None:
    promoted = PromotedSkills(home)
    for number in range(MAX_SKILLS):
        promoted.add("local", parse(f"s{number}", GOOD.encode()))
    promoted.add("local", parse("s0", GOOD.encode()))
    session(home, "work", totals=GOOD)
    assert main(["skills", "promote", "work", "totals", "--yes"]) == 1
    assert len(promoted.read("local")) == MAX_SKILLS
