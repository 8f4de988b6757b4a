"""`wget`, with its common options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelmcp_shell.commands import CommandFailed, Result
from kernelmcp_shell.transfers import Headers, fetch, name_in, printed, save, with_scheme

if TYPE_CHECKING:
    from kernelmcp_shell.commands import Ask, Call, Command
    from kernelmcp_shell.files import Files

# wget's exit statuses.
_USAGE, _NETWORK, _SERVER = 2, 4, 8


class _Line:
    def __init__(self, words: list[str]) -> None:
        self.urls: list[str] = []
        self.headers: Headers = []
        self.output = ""
        self.quiet = False
        rest = iter(words)
        for word in rest:
            if not word.startswith("-"):
                self.urls.append(word)
            elif word.startswith("--"):
                name, equals, value = word[2:].partition("=")
                takes = name in ("output-document", "header") and not equals
                self._long(name, next(rest, "") if takes else value)
            else:
                self._short(word[1:], next(rest, "") if word.endswith("O") else "")

    def _long(self, name: str, value: str) -> None:
        if name == "quiet":
            self.quiet = True
        elif name == "output-document":
            self.output = value
        elif name == "header":
            self.headers.append((value.partition(":")[0].strip(), value.partition(":")[2].strip()))
        elif name != "no-verbose":
            raise CommandFailed(_USAGE, f"option --{name} is not supported here: use curl")

    def _short(self, letters: str, value: str) -> None:
        flags, has_output, name = letters.partition("O")
        if set(flags) - set("qnvcN"):
            raise CommandFailed(_USAGE, f"option -{flags} is not supported here: use curl")
        self.quiet = self.quiet or "q" in flags
        if has_output:
            self.output = name or value


def make_wget(ask: Ask, files: Files) -> Command:
    def wget(call: Call) -> Result:
        try:
            line = _Line(call.argv)
            if not line.urls:
                raise CommandFailed(_USAGE, "missing URL")
            return _run(line, call, ask, files)
        except CommandFailed as failed:
            code = failed.exit_code if failed.exit_code in (_USAGE, _SERVER) else _NETWORK
            return Result("", f"wget: {failed}\n", code)

    return wget


def _run(line: _Line, call: Call, ask: Ask, files: Files) -> Result:
    stdout, stderr = b"", ""
    for url in map(with_scheme, line.urls):
        response = fetch(ask, url, line.headers)
        if response.status >= 400:
            raise CommandFailed(_SERVER, f"server returned error: {response.status} {response.reason}")
        target = line.output or name_in(url) or "index.html"
        if target == "-":
            stdout += response.body
            continue
        save(files, call, target, response.body)
        stderr += "" if line.quiet else f"'{target}' saved [{len(response.body)}]\n"
    return printed(call, stdout, stderr, 0)
