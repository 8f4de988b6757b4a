"""`wget`, with its common options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelmcp_shell.builtin_interface import CommandFailed, Result
from kernelmcp_shell.transfers import Headers, fetch, name_in, printed, save, with_scheme

if TYPE_CHECKING:
    from kernelmcp_shell.builtin_interface import Ask, Call, Command
    from kernelmcp_shell.files import Files

# wget's exit statuses.
_USAGE, _NETWORK, _SERVER = 2, 4, 8


def make_wget(ask: Ask, files: Files) -> Command:
    def wget(call: Call) -> Result:
        try:
            return _run(call, ask, files)
        except CommandFailed as failed:
            code = failed.exit_code if failed.exit_code in (_USAGE, _SERVER) else _NETWORK
            return Result("", f"wget: {failed}\n", code)

    return wget


def _run(call: Call, ask: Ask, files: Files) -> Result:
    options, urls = _parsed(call.argv)
    if not urls:
        raise CommandFailed(_USAGE, "missing URL")
    output = next((value for name, value in reversed(options) if name in ("-O", "--output-document")), "")
    is_quiet = any(name in ("-q", "--quiet") for name, _ in options)
    pairs = [value.partition(":") for name, value in options if name == "--header"]
    headers: Headers = [(name.strip(), text.strip()) for name, _, text in pairs]
    stdout, stderr = b"", ""
    for url in map(with_scheme, urls):
        response = fetch(ask, url, headers)
        if response.status >= 400:
            raise CommandFailed(_SERVER, f"server returned error: {response.status} {response.reason}")
        target = output or name_in(url) or "index.html"
        if target == "-":
            stdout += response.body
            continue
        save(files, call, target, response.body)
        stderr += "" if is_quiet else f"'{target}' saved [{len(response.body)}]\n"
    return printed(call, stdout, stderr, 0)


def _parsed(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    import getopt

    try:
        return getopt.gnu_getopt(words, "qnvcNO:", ["output-document=", "header=", "quiet", "no-verbose"])
    except getopt.GetoptError as error:
        name = f"--{error.opt}" if len(error.opt) > 1 else f"-{error.opt}"
        raise CommandFailed(_USAGE, f"option {name} is not supported here: use curl") from None
