"""Determines whether the output of a script's programs goes straight to its cell. If so, it is streamed; otherwise
bashkit passes it on, which has it only after they have ended.

Only clear cases count: known commands in sequence, also in loops and conditions. A pipe that contains a program, a
redirection of a program's output, a substitution, a subshell or a function may send the output elsewhere.
"""

from __future__ import annotations

import re

PROGRAMS = ("python", "python3", "pip", "pip3", "pytest")

# These run no other commands, and do not change the cell's own streams.
_OTHERS = """
cat cd chmod cp cut date echo exit export false grep head jq ls mkdir mv printf pwd read rm sed set sleep sort tail tee
test touch tr true uniq unset wc [ [[ : break continue
"""
KNOWN = frozenset((*PROGRAMS, *_OTHERS.split()))
_OPENING = frozenset(("if", "then", "elif", "else", "while", "until", "do", "{", "!"))
_CLOSING = frozenset(("fi", "done", "}"))
_INPUT = ("<<<", "<<-", "<<", "<")
_SEPARATORS = ("\n", ";", "&&", "||")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_MAX_CHARS = 64 * 1024

_TOKEN = re.compile(
    r"""(?P<nothing> [ \t\r]++ | \\\n | \#[^\n]*+ )
    | (?P<operator> [0-9]*+(?: <<< | <<-? | <(?![(&>]) | >> | >& | >(?![(|]) ) | && | \|\| | ; | \n | \| )
    | (?P<word> (?:
          [^\s'"\\`$;&|<>()]
        | '[^']*+'
        | "(?: [^"\\`$] | \\. | \$(?!\() )*+"
        | \\[^\n]
        | \$\(\( [\w\s+*/%-]*+ \)\)
        | \$\{ [^}`$'"\\()\s]*+ \}
        | \$(?![({'"])
      )++ )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)

Token = tuple[str, str]
"""Its kind (a group of the pattern above), and its text."""


class _NotPlainError(Exception):
    pass


def output_of_programs(code: str) -> str | None:
    """How the programs of a script write straight to the cell: "apart" for stdout and stderr unchanged, "merged" for
    both on stdout (`2>&1`). None: they do not, or it is not clear."""
    try:
        commands = _split(_tokens(code), _SEPARATORS) if len(code) <= _MAX_CHARS else []
        found = {_of_pipeline(_split(command, ("|",))) for command in commands} - {""}
    except _NotPlainError:
        return None
    return found.pop() if len(found) == 1 else None


def _tokens(code: str) -> list[Token]:
    tokens: list[Token] = []
    documents: list[Token] = []  # here-documents that begin at the next line: operator and delimiter
    at = 0
    while at < len(code):
        match = _TOKEN.match(code, at)
        if match is None:
            raise _NotPlainError
        at = match.end()
        kind, text = str(match.lastgroup), match[0]
        if kind == "nothing":
            continue
        if kind == "word" and tokens and tokens[-1] in (("operator", "<<"), ("operator", "<<-")):
            documents.append((tokens[-1][1], text))
        tokens.append((kind, text))
        if text == "\n":
            for operator, end in documents:
                at = _after_document(code, at, operator, end)
            documents = []
    if documents:
        raise _NotPlainError
    return tokens


def _after_document(code: str, at: int, operator: str, end: str) -> int:
    """The position after a here-document. Substitutions in it are commands, unless its delimiter is quoted."""
    plain_end = re.sub(r"""['"\\]""", "", end)
    start = at
    while at < len(code):
        after = code.find("\n", at)
        line = code[at:] if after < 0 else code[at:after]
        if (line.lstrip("\t") if operator.endswith("-") else line) == plain_end:
            if plain_end == end and re.search(r"\$\(|`", code[start:at]):
                raise _NotPlainError
            return at + len(line)
        at += len(line) + 1
    raise _NotPlainError


def _split(tokens: list[Token], operators: tuple[str, ...]) -> list[list[Token]]:
    parts: list[list[Token]] = [[]]
    for kind, text in tokens:
        if kind == "operator" and text in operators:
            parts.append([])
        else:
            parts[-1].append((kind, text))
    return parts


def _of_pipeline(commands: list[list[Token]]) -> str:
    """ "apart" or "merged", or nothing where it is no program."""
    first, *others = commands
    found = _of_command(_without_opening(first))
    if others and (found or (first and first[0][1] in _CLOSING) or any(map(_of_command, others))):
        raise _NotPlainError
    return found


def _without_opening(command: list[Token]) -> list[Token]:
    while command and command[0][1] in _OPENING:
        command = command[1:]
    return command


def _of_command(command: list[Token]) -> str:
    words, redirections = _words(command)
    taken = [found for found in redirections if found[0] not in _INPUT]
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    if words and words[0] in PROGRAMS:
        if taken not in ([], [("2>&", "1")]):
            raise _NotPlainError
        return "merged" if taken else "apart"
    is_closing = bool(words) and words[0] in _CLOSING
    if (is_closing and (len(words) > 1 or taken)) or not (
        is_closing or not words or words[0] in KNOWN or (words[0] == "for" and not redirections)
    ):
        raise _NotPlainError
    return ""


def _words(command: list[Token]) -> tuple[list[str], list[Token]]:
    """The words of a command, and its redirections: each with operator and target."""
    words: list[str] = []
    redirections: list[Token] = []
    rest = iter(command)
    for kind, text in rest:
        if kind == "word":
            words.append(text)
            continue
        to = next(rest, None)
        if to is None or to[0] != "word":
            raise _NotPlainError
        redirections.append((text, to[1]))
    return words, redirections
