"""The user's policy for scripts of the shell (`[shell] commands`): whether one runs, needs approval, or is denied.

Decided for each script, in the server, from the commands that the shell's guest found in it before it ran anything. It
guards against a model's mistakes. It is no security boundary: Python in the same session needs no command. Must not
know sessions or MCP.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice
from typing import Any

from kernelmcp.code_mode.call_policy import STRICTNESS, most_specific, specificity
from kernelmcp.config.upstream_settings import Decision
from kernelmcp.output.sanitize import as_list

# A script that has more cannot be read: a hostile guest must not keep the server busy.
MAX_COMMANDS, MAX_WORDS, MAX_CHARS = 1_000, 2_000, 20_000
# The same for commands with computed words: their signs times the rules with which they are compared.
MAX_COMPARISONS = 100_000
# To begin a comparison costs as much as so many signs.
STEP_CHARS = 20
# Commands that one command may run in turn.
MAX_FORMS = 8
# The beginning of a command that is compared with a pattern while the rest of it is not known.
MAX_KNOWN_CHARS = 300
UNREADABLE = "not all commands of the script can be determined"
"""The rule for such a script, if there are others: the user is asked."""
# They run the command that their arguments name, behind their options. Those listed take the next word as their value.
_WRAPPERS = {
    "builtin": "",
    "busybox": "",
    "command": "",
    "env": "-u -C --unset --chdir",
    "exec": "-a",
    "flock": "-w -E --timeout --conflict-exit-code",
    "nice": "-n --adjustment",
    "nohup": "",
    "sudo": "-u -g -h -p -C -D -R -T -U --user --group --host --prompt --chdir --chroot",
    "time": "-f -o --format --output",
    "timeout": "-s -k --signal --kill-after",
    "xargs": "-I -d -n -P -L -s -E -a --max-args --max-procs --max-lines --max-chars --delimiter --eof --arg-file",
}
_HAVE_AN_OPERAND = frozenset({"flock", "timeout"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_ASSIGNMENT_OF_ENV = re.compile(r"[^=]+=.*", re.DOTALL)
_RUNS_NEXT = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
# What they are given, or name, is a script.
_RUNS_SCRIPTS = frozenset(
    {
        ".",
        "alias",
        "bash",
        "compgen",
        "dash",
        "eval",
        "hash",
        "make",
        "parallel",
        "retry",
        "sh",
        "source",
        "trap",
        "watch",
    }
)
_MARK = re.compile(r"-[a-zA-Z0]*?([Ii])(.*)|--replace(?:=(.*))?", re.DOTALL)
_AWK = frozenset({"awk", "gawk", "mawk", "nawk"})
_RUNS_IN_AWK = re.compile(r"system\s*\(|@\s*\w+\s*\(|getline|(?<!\|)\|(?!\|)|^-(?:[fEi]|-file|-exec|-include)")
# Its tests with a value, and options.
_VALUE_OF_FIND = re.compile(
    r"-(?:i?(?:name|path|wholename|lname|regex)|regextype|x?type|size|[ac]?newer|samefile|[acm](?:time|min)|perm|user|group"
    r"|[ug]id|links|inum|fstype|used|maxdepth|mindepth|printf)"
)
_PROGRAMS = re.compile(r"(?:/usr(?:/local)?)?/s?bin/(?=[^/]+$)")
_TOKEN = re.compile(r"\[[^\]]*\]|\*+|.", re.DOTALL)

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
    comparisons = 0
    for words in commands:
        forms = list(islice(_forms(words), MAX_FORMS + 1))
        is_readable = is_readable and len(forms) <= MAX_FORMS and all(map(_is_readable, forms))
        for form in forms[:MAX_FORMS]:
            comparisons += (len(_known(form)) + STEP_CHARS) * len(rules) if None in form else 0
            if None in form and comparisons > MAX_COMPARISONS:
                is_readable = False
            else:
                found.append((*_decide(rules, form), words))
    if not is_readable and _strictest(rules.values()) != "allow":
        found.append(("ask", UNREADABLE, []))
    strictest = _strictest(decision for decision, _, _ in found)
    decided = [(rule, words) for decision, rule, words in found if decision == strictest]
    return ScriptVerdict(
        strictest,
        tuple(dict.fromkeys(rule for rule, _ in decided if rule)),
        tuple(dict.fromkeys(_shown(words) for _, words in decided if words)),
    )


def _shown(words: Words) -> str:
    """As one would write it: quoted, but for what is computed."""
    return " ".join("$..." if word is None else shlex.quote(word) for word in words)


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
        name = words[0] if words else None
        if name is not None and (program := _PROGRAMS.match(name)):
            name = name[program.end() :]
        yield [name, *words[1:]]
        runs_next = [_until_end(words[at + 1 :]) for at, word in enumerate(words) if word in _RUNS_NEXT]
        waiting += [_replaced(run, "{}") for run in runs_next]
        runs = name in _WRAPPERS and not (name == "command" and words[1:2] in (["-v"], ["-V"]))
        if name is not None and runs and (run := words[(start := _start(name, words)) :]):
            waiting.append([*_replaced(run, _mark(words[1:start])), None] if name == "xargs" else run)


def _replaced(words: Words, mark: str) -> Words:
    """The words; one that holds the mark is computed."""
    return [None if word is None or (mark and mark in word) else word for word in words]


def _mark(options: Words) -> str:
    """The mark that xargs with these options replaces; empty if there is none."""
    mark = ""
    for option, value in zip(options, [*options[1:], None], strict=False):
        if found := _MARK.fullmatch(option or ""):
            mark = found[2] or found[3] or (value if found[1] == "I" else "{}") or ""
    return mark


def _start(wrapper: str, words: Words) -> int:
    """Where the command of a wrapper begins. At a computed word, which may be an option or the command."""
    at, operands = 1, int(wrapper in _HAVE_AN_OPERAND)
    while at < len(words) and (word := words[at]) is not None:
        if _takes_next(_WRAPPERS[wrapper].split(), word):
            at += 2
        elif word.startswith("-"):
            at += 1
        elif operands:
            at, operands = at + 1, 0
        elif (_ASSIGNMENT_OF_ENV if wrapper == "env" else _ASSIGNMENT).fullmatch(word):
            at += 1
        else:
            break
    return at


def _takes_next(options: list[str], word: str) -> bool:
    """Whether an option, or the last of several in a word (`-rn`), has the next word as its value."""
    if word in options or not word.startswith("-") or word.startswith("--"):
        return word in options
    return next((at for at, letter in enumerate(word) if f"-{letter}" in options), 0) == len(word) - 1 > 0


def _until_end(words: Words) -> Words:
    return words[: next((at for at, word in enumerate(words) if word in (";", "+")), len(words))]


def _is_readable(words: Words) -> bool:
    """False if it runs what its words do not say."""
    name, *given = words
    if name is None or "/" in name or name in _RUNS_SCRIPTS or (name == "find" and _has_computed_action(given)):
        return False
    return name not in _AWK or all(word is not None and not _RUNS_IN_AWK.search(word) for word in given)


def _has_computed_action(given: Words) -> bool:
    """Whether `find` has a computed word where `-exec` may be: not as a path, the value of a test, or of an `-exec`."""
    is_path, before, at = True, "", 0
    while at < len(given):
        word = given[at]
        if word is None and not is_path and not _VALUE_OF_FIND.fullmatch(before):
            return True
        is_path = is_path and not (word or "").startswith(("-", "(", "!"))
        before = word or ""
        at += 2 + len(_until_end(given[at + 1 :])) if word in _RUNS_NEXT else 1
    return False


# -- rules ----------------------------------------------------------------------------------------------------------


def _decide(rules: Mapping[str, Decision], words: Words) -> tuple[Decision, str]:
    """The most specific rule. While a word is computed, a more specific one may match: then the user is asked."""
    if words == ["exec"] or words[0] is None:
        return "allow", ""  # it redirects; or it cannot be read, which decides
    if None not in words:
        text = " ".join(word for word in words if word is not None)
        matching = [rule for rule in rules.items() if _matches(rule[0], text)]
        return _first(matching)
    known = _known(words)
    matched = {pattern: _begins(pattern, known) for pattern in rules}
    for pattern in rules:  # what is computed may be nothing
        if matched[pattern] == "not" and _matches(pattern, known.rstrip()):
            matched[pattern] = "perhaps"
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


def _known(words: Words) -> str:
    """The beginning of a command, up to its first computed word."""
    return "".join(f"{word} " for word in words[: words.index(None)])[:MAX_KNOWN_CHARS]


def _first(matching: list[tuple[str, Decision]]) -> tuple[Decision, str]:
    pattern, decision = most_specific(matching or [("", "allow")])
    return decision, pattern


def _matches(pattern: str, text: str) -> bool:
    return fnmatchcase(text, pattern) or (pattern.endswith(" *") and fnmatchcase(text, pattern[:-2]))


def _begins(pattern: str, known: str) -> str:
    """Whether the pattern matches a text that begins in this way, whatever follows: `surely`, `perhaps` or `not`."""
    tokens, stars = _tokens(pattern)
    reached = 1  # a bit for each position in the pattern
    reached |= (reached & stars) << 1
    fits: dict[str, int] = {}
    for sign in known:
        if (fit := fits.get(sign)) is None:
            fit = fits[sign] = sum(1 << at for at, token in enumerate(tokens) if _fits(sign, token))
        reached = ((reached & fit & ~stars) << 1) | (reached & stars)
        reached |= (reached & stars) << 1
        if not reached:
            return "not"
    return "surely" if stars >> (len(tokens) - 1) & 1 and reached >> (len(tokens) - 1) & 1 else "perhaps"


@lru_cache(maxsize=1_000)
def _tokens(pattern: str) -> tuple[list[str], int]:
    """The signs of a pattern, and a bit for each that is a star."""
    tokens = _TOKEN.findall(pattern)
    return tokens, sum(1 << at for at, token in enumerate(tokens) if token[0] == "*")


def _fits(sign: str, part: str) -> bool:
    return sign == part if len(part) == 1 and part not in "?*" else fnmatchcase(sign, part)
