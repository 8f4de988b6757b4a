"""What the rules for bash commands say of a script, from what its guest has found in it."""

from typing import Any

import pytest

from kernelmcp.code_mode.command_policy import MAX_COMMANDS, MAX_WORDS, UNREADABLE, judge
from kernelmcp.config.upstream_settings import Decision

RULES: dict[str, Decision] = {
    "rm *": "ask",
    "rm -i *": "allow",
    "rm -rf /volumes/*": "deny",
    "git push*": "ask",
    "curl *": "deny",
    "ls": "ask",
}
ALLOWED, ASKED = ("allow", ()), ("ask", ("rm *",))
UNREAD = ("ask", (UNREADABLE,))
Verdict = tuple[str, tuple[str, ...]]


def judged(*commands: Any, is_all: Any = True, rules: dict[str, Decision] | None = None) -> Verdict:
    verdict = judge(RULES if rules is None else rules, {"commands": list(commands), "all": is_all})
    return verdict.decision, verdict.rules


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("cat f", ALLOWED),
        ("rm f", ASKED),
        ("rm", ASKED),
        ("rmdir d", ALLOWED),
        ("/bin/rm f", ASKED),
        ("/usr/bin/rm f", ASKED),
        ("rm -i f", ("allow", ("rm -i *",))),
        ("rm -rf /volumes/data", ("deny", ("rm -rf /volumes/*",))),
        ("git push origin main", ("ask", ("git push*",))),
        ("git pull", ALLOWED),
        ("ls", ("ask", ("ls",))),
        ("ls -l", ALLOWED),
        ("echo rm f", ALLOWED),
        ("exec", ALLOWED),
        # What a command runs is a command of the script.
        ("timeout 5 rm f", ASKED),
        ("timeout -k 1 5s rm f", ASKED),
        ("nice -n 5 rm f", ASKED),
        ("sudo rm f", ASKED),
        ("env A=1 curl http://x", ("deny", ("curl *",))),
        ("env -u A curl http://x", ("deny", ("curl *",))),
        ("find . -name x -exec rm {} +", ASKED),
        ("find . -exec env rm {} ;", ASKED),
        ("find . -exec rm -i {} ; -exec rm {} ;", ASKED),
        ("xargs rm -f", ASKED),
        ("xargs -I {} rm {}", ASKED),
        ("xargs rm -i", ("allow", ("rm -i *",))),
        ("xargs", ALLOWED),
        ("timeout -s KILL 5 rm f", ASKED),
        ("xargs -d x -n 1 rm", ASKED),
        ("xargs -I {} -n 1 rm {}", ASKED),
        ("env -u A -u B rm f", ASKED),
        ("sudo -u root -g root rm f", ASKED),
        ("exec -a x -c rm f", ASKED),
        ("flock f rm f", ASKED),
        ("find . -exec timeout -s KILL 5 rm {} ;", ASKED),
        ("env A-B=1 rm f", ASKED),
        ("flock a=b rm f", ASKED),
        ("xargs -rn 1 rm", ASKED),
        ("xargs -rI X rm X", ASKED),
        ("xargs -n1 rm", ASKED),
        # What it replaces is computed.
        ("xargs -I X X f", UNREAD),
        ("xargs -rIX rX f", UNREAD),
        ("xargs -i {} f", UNREAD),
        ("xargs --replace=X env X f", UNREAD),
        ("find . -exec {} ;", UNREAD),
        # A name of a command is none.
        ("command -v curl", ALLOWED),
        ("timeout 5 echo curl x", ALLOWED),
        ("grep -r curl .", ALLOWED),
        # What runs is not said.
        ("alias ll=rm", UNREAD),
        ("trap x EXIT", UNREAD),
        ("bash run.sh", UNREAD),
        ("timeout 60 bash run.sh", UNREAD),
        ("xargs -I{} sh -c x", UNREAD),
        ("find . -exec sh -c x ;", UNREAD),
        ("builtin source f", UNREAD),
        ("command . f", UNREAD),
        ("./f.sh", UNREAD),
        ("./bin/f", UNREAD),
        ("venv/bin/activate", UNREAD),
        ("make", UNREAD),
        ("timeout 5 ./a=b.sh", UNREAD),
        ("nice ./x=1.sh", UNREAD),
        ("nawk -f p.awk", UNREAD),
        ("awk --file=p.awk", UNREAD),
        ("awk system(x)", UNREAD),
        ("awk x|getline", UNREAD),
        ("awk @f(x)", UNREAD),
        ("awk {print}", ALLOWED),
        (" ".join(["env"] * 20), UNREAD),
    ],
)
def test_one_command(command: str, expected: Verdict) -> None:
    assert judged(command.split()) == expected


@pytest.mark.parametrize(
    ("rules", "words", "expected"),
    [
        (RULES, ["cat", None], ALLOWED),
        (RULES, ["curl", None], ("deny", ("curl *",))),
        (RULES, ["git", None], ("ask", ("git push*",))),
        (RULES, ["rm", "-i", None], ("allow", ("rm -i *",))),
        # `deny` is for what is certain.
        (RULES, ["rm", None], ("ask", ("rm *",))),
        ({"rm -rf *": "deny"}, ["rm", None], ("ask", ("rm -rf *",))),
        ({"*": "ask", "ls *": "allow"}, ["ls", None], ("allow", ("ls *",))),
        ({"*": "ask", "ls *": "allow"}, ["cat", None], ("ask", ("*",))),
        ({"*--force*": "deny"}, ["git", "push", "--force", None], ("deny", ("*--force*",))),
        ({"*--force*": "deny"}, ["git", "push", None], ("ask", ("*--force*",))),
        ({"git*push*": "deny"}, ["git", "push", None], ("deny", ("git*push*",))),
        ({"*/volumes/*": "ask"}, ["rm", "/volumes/data", None], ("ask", ("*/volumes/*",))),
        ({"[rc]m ?": "deny"}, ["rm", None], ("ask", ("[rc]m ?",))),
        ({"pwd": "deny"}, ["pwd", None], ("ask", ("pwd",))),
        ({"git push": "deny"}, ["git", "push", None], ("ask", ("git push",))),
        ({"a**b*": "ask"}, ["axb", None], ("ask", ("a**b*",))),
        (RULES, ["timeout", None, "rm", "f"], UNREAD),
        ({"rm /data/*": "deny"}, ["find", "/data", "-exec", "rm", "{}", "+"], ("ask", ("rm /data/*",))),
        ({"rm /data/*": "deny"}, ["xargs", "-I{}", "rm", "{}"], ("ask", ("rm /data/*",))),
        (RULES, ["find", None, "-name", None, "-exec", "cat", None, "{}", ";", "-newer", None], ALLOWED),
        (RULES, ["find", ".", "-type", "f", None], UNREAD),
        (RULES, ["find", ".", "-print", None, "rm", "{}", ";"], UNREAD),
        (RULES, ["find", ".", "-name", "a", "-o", None, "rm", "{}", ";"], UNREAD),
        (RULES, ["find", ".", "-not", None, "rm", "{}", ";"], UNREAD),
        (RULES, ["find", ".", "-exec", "cat", "{}", ";", None, "rm", "{}", ";"], UNREAD),
        (RULES, ["find", ".", "-exec", "cat", "{}", "+", None], UNREAD),
        (RULES, ["xargs", "find", ".", "-print", "-name", "f"], UNREAD),
        ({"[cd]p *": "deny"}, ["rm", None], ALLOWED),
    ],
)
def test_a_computed_argument_may_be_any(rules: dict[str, Decision], words: Any, expected: Verdict) -> None:
    assert judged(words, rules=rules) == expected


@pytest.mark.parametrize(
    ("rules", "command"),
    [
        ({"find *": "allow", "*": "ask", "rm *": "deny"}, "find . -exec rm {} +"),
        ({"timeout *": "allow", "rm *": "deny"}, "timeout 5 rm x"),
        ({"env *": "allow", "*": "ask", "rm *": "deny"}, "env rm x"),
        ({"*": "deny", "ls *": "allow"}, "env rm ls x"),
        ({"*": "deny", "ls *": "allow", "env *": "allow"}, "env -u ls rm x"),
    ],
)
def test_a_rule_for_a_wrapper_frees_nothing_that_it_runs(rules: dict[str, Decision], command: str) -> None:
    assert judged(command.split(), rules=rules)[0] == "deny"


@pytest.mark.parametrize("command", ["timeout 5 ls -l x", "xargs -n 1 ls -l", "nice ls", "env -i A=1 ls"])
def test_an_option_is_no_command(command: str) -> None:
    rules: dict[str, Decision] = {"*": "deny", "ls *": "allow", f"{command.split()[0]} *": "allow"}
    assert judged(command.split(), rules=rules)[0] == "allow"


def test_the_strictest_command_decides_and_is_shown() -> None:
    commands = [["cat", "f"], ["curl", "http://x", None], ["rm", "f"], ["curl", "http://x", None]]
    verdict = judge(RULES, {"commands": commands, "all": True})
    assert (verdict.decision, verdict.rules, verdict.commands) == ("deny", ("curl *",), ("curl http://x $...",))
    shown = judge(RULES, {"commands": [["rm", "a b"], ["rm", "a", "b"], ["rm", "$..."]], "all": True}).commands
    assert shown == ("rm 'a b'", "rm a b", "rm '$...'")
    assert judge({}, {"commands": commands, "all": True}).decision == "allow"


@pytest.mark.parametrize("is_all", [False, None, 1, "true"])
def test_the_user_is_asked_about_what_cannot_be_read(is_all: Any) -> None:
    assert judged(["cat", "f"], is_all=is_all) == UNREAD
    assert judged(["curl", "x"], is_all=is_all) == ("deny", ("curl *",))
    assert judged(["cat", "f"], is_all=is_all, rules={"*": "allow"})[0] == "allow"
    assert judged(["cat", "f"], is_all=is_all, rules={})[0] == "allow"


@pytest.mark.parametrize(
    "commands",
    [
        [[]],
        [[None]],
        ["rm"],
        [5],
        [None],
        [[["rm"]]],
        [["cat"]] * (MAX_COMMANDS + 1),
        [["cat", *["f"] * MAX_WORDS]],
        [["cat", "f" * 10**6]],
        *[[[name] * 900_000] for name in ("env", "xargs", "-exec", "timeout")],
        [["find", *["-exec", "env"] * 400_000]],
        [["env", None] * 400_000],
    ],
    ids=lambda commands: str([each[:9] if isinstance(each, list) else each for each in commands[:9]])[:20],
)
def test_a_guest_that_lies_gets_no_less_than_a_question_and_costs_little(commands: Any) -> None:
    assert judged(*commands)[0] != "allow"


def test_the_more_rules_the_fewer_computed_commands_are_compared_with_them() -> None:
    few: dict[str, Decision] = {f"a*{number}": "allow" for number in range(50)} | {"x": "ask", "rm *": "deny"}
    many = few | {f"a*{number}": "allow" for number in range(50, 1_000)}
    computed: list[list[str | None]] = [["b" * 90, None]] * 10
    assert judged(*computed, rules=few)[0] == "allow"
    assert judged(*computed, rules=many) == UNREAD
    assert judged(*computed, ["rm", "f"], rules=many) == ("deny", ("rm *",)), "what is certain is decided even so"


def test_without_commands_nothing_is_decided() -> None:
    assert judged() == ALLOWED
    assert judge(RULES, {}).decision == "ask"


def test_the_most_specific_rule_decides() -> None:
    rules: dict[str, Decision] = {"*": "ask", "ls *": "allow", "ls -[Rr]*": "deny", "g?t *": "deny"}
    assert judged(["ls"], rules=rules) == ("allow", ("ls *",))
    assert judged(["cat", "f"], rules=rules) == ("ask", ("*",))
    assert judged(["ls", "-R"], rules=rules) == ("deny", ("ls -[Rr]*",))
    assert judged(["git"], rules=rules) == ("deny", ("g?t *",))
