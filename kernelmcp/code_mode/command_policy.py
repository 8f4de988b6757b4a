"""The user's policy for scripts of the shell (`[shell] commands`): whether one runs, needs approval, or is denied.

Decided for each script, in the server, from the commands that the shell's guest found in it before it ran anything. It
guards against a model's mistakes. It is no security boundary: Python in the same session needs no command. Must not
know sessions or MCP.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from kernelmcp.code_mode.call_policy import STRICTNESS, most_specific, specificity
from kernelmcp.config.upstream_settings import Decision
from kernelmcp.output.sanitize import as_list

# A script that has more cannot be read: a hostile guest must not keep the server busy.
MAX_COMMANDS, MAX_WORDS, MAX_CHARS = 1_000, 2_000, 20_000
# Commands that one command may run in turn.
MAX_FORMS = 8
# The beginning of a command that is compared with a pattern while the rest of it is not known.
MAX_KNOWN_CHARS = 300
UNREADABLE = "not all commands of the script can be determined"
"""The rule for such a script, if there are others: the user is asked."""
# They run the command that their arguments name.
_WRAPPERS = frozenset(
    {"builtin", "busybox", "command", "env", "exec", "nice", "nohup", "sudo", "time", "timeout", "xargs"}
)
_OPTION = re.compile(r"-.*|[A-Za-z_]\w*=.*|\d[\d.]*[smhd]?", re.DOTALL)
_RUNS_NEXT = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
# What they are given, or name, is a script.
_RUNS_SCRIPTS = frozenset({".", "alias", "bash", "compgen", "dash", "eval", "hash", "sh", "source", "trap"})
_AWK = frozenset({"awk", "gawk", "mawk"})
_RUNS_IN_AWK = re.compile(r"system\s*\(|getline|(?<!\|)\|(?!\|)")
_PROGRAMS = re.compile(r"(?:/usr(?:/local)?)?/s?bin/")
_TOKEN = re.compile(r"\[[^\]]*\]|.", re.DOTALL)

Words = list[str | None]
"""A command and its arguments; None is one that the script computes."""


@dataclass(frozen=True)
class ScriptVerdict:
    decision: Decision
    rules: tuple[str, ...] = ()
    """Those that decided."""
    commands: tuple[str, ...] = ()
    """The commands that they decided about."""


def judge(rules: Mapping[str, Decision], asked: Mapping[str, Any]) -> ScriptVerdict:
    """The strictest decision about a command of the script. `asked`: its `commands` as lists of words, and whether they
    are `all` of them. Without a rule a command runs."""
    commands, is_readable = _read(asked)
    found: list[tuple[Decision, str, Words]] = []
    for words in commands:
        forms = list(islice(_forms(words), MAX_FORMS + 1))
        is_readable = is_readable and len(forms) <= MAX_FORMS and all(map(_is_readable, forms))
        found += [(*_decide(rules, form), words) for form in forms[:MAX_FORMS]]
    if not is_readable and _strictest(rules.values()) != "allow":
        found.append(("ask", UNREADABLE, []))
    strictest = _strictest(decision for decision, _, _ in found)
    decided = [(rule, words) for decision, rule, words in found if decision == strictest]
    return ScriptVerdict(
        strictest,
        tuple(dict.fromkeys(rule for rule, _ in decided if rule)),
        tuple(
            dict.fromkeys(" ".join("$..." if word is None else word for word in words) for _, words in decided if words)
        ),
    )


def _read(asked: Mapping[str, Any]) -> tuple[list[Words], bool]:
    """The commands, and whether they are all. Those beyond the limits are left out."""
    listed = as_list(asked.get("commands"))
    found: list[Words] = []
    words_left, chars_left = MAX_WORDS, MAX_CHARS
    for each in listed[:MAX_COMMANDS]:
        words: Words = [word if isinstance(word, str) else None for word in as_list(each)[: MAX_WORDS + 1]]
        words_left -= len(words)
        chars_left -= sum(len(word) for word in words if word is not None)
        if min(words_left, chars_left) < 0:
            return found, False
        found.append(words)
    return found, asked.get("all") is True and len(found) == len(listed)


def _strictest(decisions: Iterable[Decision]) -> Decision:
    return max(("allow", *decisions), key=lambda each: STRICTNESS[each])


# -- commands -------------------------------------------------------------------------------------------------------


def _forms(words: Words) -> Iterator[Words]:
    """The command, and those that it runs; their names without the folders of programs."""
    waiting = [words]
    while waiting:
        words = waiting.pop()
        name = _PROGRAMS.sub("", words[0], count=1) if words and words[0] is not None else None
        yield [name, *words[1:]]
        waiting += [_until_end(words[at + 1 :]) for at, word in enumerate(words) if word in _RUNS_NEXT]
        if name in _WRAPPERS and not (name == "command" and words[1:2] in (["-v"], ["-V"])):
            given: Words = [None] if name == "xargs" else []
            waiting += [[*words[at:], *given] for at in _starts(words)]


def _starts(words: Words) -> list[int]:
    """Where the command of a wrapper may begin: behind its options, one of which may take the next word."""
    found = [at for at, word in enumerate(words) if at and not _OPTION.fullmatch(word or "x")][:2]
    has_options = any((word or "").startswith("-") for word in words[1 : found[0]]) if found else False
    return found if has_options and found[-1] == found[0] + 1 else found[:1]


def _until_end(words: Words) -> Words:
    return words[: next((at for at, word in enumerate(words) if word in (";", "+")), len(words))]


def _is_readable(words: Words) -> bool:
    """False if it runs what its words do not say."""
    name, *given = words
    if name is None or "/" in name or name in _RUNS_SCRIPTS:
        return False
    return name not in _AWK or all(word is not None and not _RUNS_IN_AWK.search(word) for word in given)


# -- rules ----------------------------------------------------------------------------------------------------------


def _decide(rules: Mapping[str, Decision], words: Words) -> tuple[Decision, str]:
    """The most specific rule. While a word is computed, a more specific one may match: then the user is asked."""
    if words[:1] == ["exec"] and len(words) == 1:
        return "allow", ""  # it redirects
    if None not in words:
        text = " ".join(word for word in words if word is not None)
        matching = [rule for rule in rules.items() if _matches(rule[0], text)]
        return _first(matching)
    known = "".join(f"{word} " for word in words[: words.index(None)])[:MAX_KNOWN_CHARS]
    matched = {pattern: _begins(pattern, known) for pattern in rules}
    sure: list[tuple[str, Decision]] = [
        (pattern, rules[pattern]) for pattern, found in matched.items() if found == "surely"
    ]
    decision, pattern = _first(sure)
    possible = [
        each
        for each, found in matched.items()
        if found == "perhaps" and specificity(each) >= specificity(pattern) and rules[each] != "allow"
    ]
    return ("ask", max(possible, key=specificity)) if possible and decision == "allow" else (decision, pattern)


def _first(matching: list[tuple[str, Decision]]) -> tuple[Decision, str]:
    pattern, decision = most_specific(matching or [("", "allow")])
    return decision, pattern


def _matches(pattern: str, text: str) -> bool:
    return fnmatchcase(text, pattern) or (pattern.endswith(" *") and fnmatchcase(text, pattern[:-2]))


def _begins(pattern: str, known: str) -> str:
    """Whether the pattern matches a text that begins in this way, whatever follows: `surely`, `perhaps` or `not`."""
    tokens = _TOKEN.findall(pattern)
    states = _with_stars({0}, tokens)
    for sign in known:
        after = {
            at if tokens[at] == "*" else at + 1 for at in states if at < len(tokens) and fnmatchcase(sign, tokens[at])
        }
        if not (states := _with_stars(after, tokens)):
            return "not"
    return "surely" if pattern.endswith("*") and len(tokens) - 1 in states else "perhaps"


def _with_stars(states: set[int], tokens: list[str]) -> set[int]:
    """The positions in a pattern, and those behind a star, which may match nothing."""
    found = set(states)
    for at in states:
        while at < len(tokens) and tokens[at] == "*":
            at += 1
            found.add(at)
    return found
