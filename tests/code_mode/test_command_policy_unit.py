"""What the rules for bash commands say of a script, from what its guest has found in it."""

from typing import Any

import pytest

from kernelmcp.code_mode.command_policy import MAX_COMMANDS, UNREADABLE, judge
from kernelmcp.config.upstream_settings import Decision

RULES: dict[str, Decision] = {
    "rm *": "ask",
    "rm -i *": "allow",
    "rm -rf /volumes/*": "deny",
    "git push*": "ask",
    "curl *": "deny",
    "ls": "ask",
}


def judged(*commands: Any, is_all: Any = True, rules: dict[str, Decision] | None = None) -> tuple[str, tuple[str, ...]]:
    verdict = judge(RULES if rules is None else rules, {"commands": list(commands), "all": is_all})
    return verdict.decision, verdict.rules


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("cat f", ("allow", ())),
        ("rm f", ("ask", ("rm *",))),
        ("rm", ("ask", ("rm *",))),
        ("rmdir d", ("allow", ())),
        ("rm -i f", ("allow", ("rm -i *",))),
        ("rm -rf /volumes/data", ("deny", ("rm -rf /volumes/*",))),
        ("git push origin main", ("ask", ("git push*",))),
        ("git pull", ("allow", ())),
        ("ls", ("ask", ("ls",))),
        ("ls -l", ("allow", ())),
        ("echo rm f", ("allow", ())),
        ("timeout 5 rm f", ("ask", ("rm *",))),
        ("env A=1 curl http://x", ("deny", ("curl *",))),
        ("xargs rm -i", ("deny", ("rm -rf /volumes/*",))),
        ("xargs", ("allow", ())),
        ("find . -name x -exec rm {} +", ("ask", ("rm *",))),
        ("alias ll=rm", ("ask", (UNREADABLE,))),
        ("trap x EXIT", ("ask", (UNREADABLE,))),
    ],
)
def test_one_command(command: str, expected: tuple[str, tuple[str, ...]]) -> None:
    assert judged(command.split()) == expected


def test_a_computed_argument_may_be_any() -> None:
    assert judged(["rm", None]) == ("deny", ("rm -rf /volumes/*",))
    assert judged(["cat", None]) == ("allow", ())
    assert judged(["git", None]) == ("ask", ("git push*",))


def test_the_strictest_command_decides_and_is_shown() -> None:
    commands = [["cat", "f"], ["curl", "http://x", None], ["rm", "f"], ["curl", "http://x", None]]
    verdict = judge(RULES, {"commands": commands, "all": True})
    assert (verdict.decision, verdict.rules, verdict.commands) == ("deny", ("curl *",), ("curl http://x $...",))
    assert judge({}, {"commands": commands, "all": True}).decision == "allow"


@pytest.mark.parametrize("is_all", [False, None, 1, "true"])
def test_the_user_is_asked_about_what_cannot_be_read(is_all: Any) -> None:
    assert judged(["cat", "f"], is_all=is_all) == ("ask", (UNREADABLE,))
    assert judged(["curl", "x"], is_all=is_all) == ("deny", ("curl *",))
    assert judged(["cat", "f"], is_all=is_all, rules={"*": "allow"})[0] == "allow"
    assert judged(["cat", "f"], is_all=is_all, rules={})[0] == "allow"


@pytest.mark.parametrize("commands", [[[]], [[None]], ["rm"], [5], [None], [[["rm"]]], [["cat"]] * (MAX_COMMANDS + 1)])
def test_a_guest_that_lies_gets_no_less_than_a_question(commands: Any) -> None:
    assert judged(*commands)[0] != "allow"


def test_without_commands_nothing_is_decided() -> None:
    assert judged() == ("allow", ())
    assert judge(RULES, {}).decision == "ask"


def test_the_most_specific_rule_decides() -> None:
    rules: dict[str, Decision] = {"*": "ask", "ls *": "allow", "ls -[Rr]*": "deny"}
    assert judged(["ls"], rules=rules) == ("allow", ("ls *",))
    assert judged(["cat", "f"], rules=rules) == ("ask", ("*",))
    assert judged(["ls", "-R"], rules=rules) == ("deny", ("ls -[Rr]*",))
