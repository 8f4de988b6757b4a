"""The user's policy for scripts of the shell (`[shell] commands`): whether one runs, needs approval, or is denied.

Decided for each script, in the server, from the commands that the shell's guest found in it before it ran anything. It
keeps a model from what it does by mistake. It is no boundary: Python in the same session needs no command. Must not
know sessions or MCP.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from kernelmcp.code_mode.call_policy import STRICTNESS, most_specific
from kernelmcp.config.upstream_settings import Decision
from kernelmcp.output.sanitize import as_list

# A longer script is judged as one that cannot be read.
MAX_COMMANDS = 1_000
UNREADABLE = "a script whose commands cannot all be read"
"""The rule for it, if there are others: the user is asked."""
# They run the command that their arguments name.
_WRAPPERS = frozenset({"builtin", "command", "env", "exec", "nice", "nohup", "time", "timeout", "xargs"})
_RUNS_NEXT = frozenset({"-exec", "-execdir"})
# What they name runs later, and cannot be seen then.
_HIDING = frozenset({"alias", "trap"})

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
    commands = [_words(each) for each in as_list(asked.get("commands"))]
    is_readable = asked.get("all") is True and len(commands) <= MAX_COMMANDS
    found: list[tuple[Decision, str, Words]] = [(*_decide(rules, words), words) for words in commands[:MAX_COMMANDS]]
    if not is_readable or any(not words or words[0] in (None, *_HIDING) for words in commands):
        is_free = _strictest(rules.values()) == "allow"
        found.append(("allow" if is_free else "ask", UNREADABLE, []))  # the user sees its code
    strictest = _strictest(decision for decision, _, _ in found)
    decided = [(rule, words) for decision, rule, words in found if decision == strictest]
    return ScriptVerdict(
        strictest,
        tuple(dict.fromkeys(rule for rule, _ in decided if rule)),
        tuple(dict.fromkeys(_shown(words) for _, words in decided if words)),
    )


def _strictest(decisions: Iterable[Decision]) -> Decision:
    return max(("allow", *decisions), key=lambda each: STRICTNESS[each])


def _decide(rules: Mapping[str, Decision], words: Words) -> tuple[Decision, str]:
    """The most specific rule; the strictest one that may apply, if a word is computed."""
    forms = list(_forms(words))
    matching = [rule for rule in rules.items() if any(_matches(rule[0], form) for form in forms)]
    if not matching:
        return "allow", ""
    if any(None in form for form in forms):
        pattern, decision = max(matching, key=lambda rule: STRICTNESS[rule[1]])
    else:
        pattern, decision = most_specific(matching)
    return decision, pattern


def _forms(words: Words) -> Iterator[Words]:
    """The command, and what may be a command that it runs."""
    yield words
    if words and words[0] in _WRAPPERS:
        given: Words = [None] if words[0] == "xargs" else []
        yield from ([*words[start:], *given] for start in range(1, len(words)))
    yield from (words[at + 1 :] for at, word in enumerate(words) if word in _RUNS_NEXT)


def _matches(pattern: str, words: Words) -> bool:
    if not words or words[0] is None:
        return False
    if None in words:
        return fnmatchcase(words[0], pattern.partition(" ")[0])
    text = " ".join(word for word in words if word is not None)
    return fnmatchcase(text, pattern) or text == pattern.removesuffix(" *")


def _shown(words: Words) -> str:
    return " ".join("$..." if word is None else word for word in words)


def _words(found: Any) -> Words:
    return [word if isinstance(word, str) else None for word in as_list(found)]
