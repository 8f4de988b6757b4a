"""`curl`, with its common options; an option that would lower security is refused, not ignored."""

from __future__ import annotations

import base64
from itertools import zip_longest
from typing import TYPE_CHECKING

from kernelmcp_shell.builtin_interface import CommandFailed, Result
from kernelmcp_shell.transfers import WRITE, Headers, Response, fetch, name_in, printed, save, with_scheme

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kernelmcp_shell.builtin_interface import Ask, Call, Command
    from kernelmcp_shell.files import Files

# curl's exit statuses.
_USAGE, _HTTP_ERROR, _READ = 2, 22, 26

_LONG = {
    "silent": "s", "show-error": "S", "location": "L", "output": "o", "remote-name": "O", "request": "X",
    "header": "H", "data": "d", "data-ascii": "d", "fail": "f", "include": "i", "head": "I", "user": "u",
    "user-agent": "A", "referer": "e", "cookie": "b", "get": "G", "max-time": "m", "write-out": "w", "insecure": "k",
    "proxy": "x", "verbose": "v", "upload-file": "T", "form": "F", "globoff": "g",
}  # fmt: skip
_WITH_VALUE = set("oXHduAebmwxTF") | {
    "--json", "--data-raw", "--data-binary", "--data-urlencode", "--url", "--connect-timeout", "--retry",
    "--retry-delay", "--oauth2-bearer",
}  # fmt: skip
_FLAGS = set("LfiIGsS")
_IGNORED = set("vg") | {"--compressed", "--connect-timeout", "--retry", "--retry-delay", "--no-progress-meter"}
_REFUSED = {
    "k": "certificates are always checked",
    "x": "the network's policy says how requests go",
    "F": "forms with files are not supported here: use Python",
    "T": "uploads are not supported here: use -X PUT --data-binary @FILE",
}
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")


def make_curl(ask: Ask, files: Files) -> Command:
    def curl(call: Call) -> Result:
        line = _Line(call, files)
        stdout = b""
        try:
            line.read()
            for url, output in zip_longest(line.urls, line.outputs[: len(line.urls)], fillvalue="-"):
                stdout += _transfer(line, with_scheme(url), output, call, ask, files)
        except CommandFailed as failed:
            is_said = "s" not in line.flags or "S" in line.flags
            return printed(call, stdout, f"curl: {failed}\n" if is_said else "", failed.exit_code)
        return printed(call, stdout, "", 0)

    return curl


class _Line:
    """The parsed arguments of a command line."""

    def __init__(self, call: Call, files: Files) -> None:
        self._call = call
        self._files = files
        self.urls: list[str] = []
        self.method = ""
        self.headers: Headers = []
        self.body: list[bytes] = []
        self.flags: set[str] = set()
        self.outputs: list[str] = []
        """Files for the URLs, in their order. "": as the URL names it."""
        self.timeout: float | None = None
        self.write_out = ""

    def read(self) -> None:
        """Parse the arguments. Raises CommandFailed."""
        for option, value in _options(self._call.argv):
            self._take(option, value)
        if not self.urls:
            raise CommandFailed(_USAGE, f"({_USAGE}) no URL specified")
        if "G" in self.flags and self.body:
            query = b"&".join(self.body).decode("utf-8", "replace")
            self.urls = [f"{url}{'&' if '?' in url else '?'}{query}" for url in self.urls]
            self.body = []

    def _take(self, option: str, value: str) -> None:
        if option in _REFUSED:
            raise _refused(option, _REFUSED[option])
        if option in _FLAGS:
            self.flags.add(option)
        elif (handler := _HANDLERS.get(option)) is not None:
            handler(self, value)
        elif option not in _IGNORED:
            raise CommandFailed(_USAGE, f"({_USAGE}) option {option} is not supported here")

    def add_given_header(self, value: str) -> None:
        if value[:1] == "@":
            raise _refused("H", "headers from a file are not supported here: name each")
        self.add_header(value)

    def add_cookies(self, value: str) -> None:
        if "=" not in value:
            raise _refused("b", "cookies from a file are not supported here: use -b NAME=VALUE")
        self.add_header(f"Cookie: {value}")

    def add_user(self, value: str) -> None:
        if ":" not in value:
            raise _refused("u", "nobody can be asked for a password here: use -u NAME:PASSWORD")
        self.add_header(f"Authorization: Basic {base64.b64encode(value.encode()).decode('ascii')}")

    def add_header(self, value: str) -> None:
        name, _, text = value.partition(":")
        if text.strip():
            self.headers.append((name.strip(), text.strip()))

    def default_headers(self, *pairs: tuple[str, str]) -> None:
        """Add headers whose names were not given."""
        given = {name.lower() for name, _ in self.headers}
        self.headers += [pair for pair in pairs if pair[0].lower() not in given]

    def contents(self, value: str) -> bytes:
        """The value itself, or the content of the file that it names. Raises CommandFailed."""
        if value[:1] != "@":
            return value.encode()
        if value == "@-":
            return (self._call.stdin or "").encode()
        try:
            return self._files.read(self._call.path(value[1:]))
        except OSError as error:
            raise CommandFailed(_READ, f"({_READ}) Failed to open {value[1:]}: {error.strerror}") from None

    def set_timeout(self, value: str) -> None:
        try:
            self.timeout = float(value)
        except ValueError:
            raise CommandFailed(_USAGE, f"({_USAGE}) option m: expected a number") from None

    def add_data(self, value: str) -> None:
        data = self.contents(value)
        self.body.append(data.replace(b"\n", b"").replace(b"\r", b"") if value[:1] == "@" else data)

    def add_json(self, value: str) -> None:
        self.default_headers(("Content-Type", "application/json"), ("Accept", "application/json"))
        self.body.append(self.contents(value))

    def add_encoded(self, value: str) -> None:
        name, sign, text = value.partition("=" if "=" in value else "@")
        plain = self.contents(f"@{text}") if sign == "@" else (text if sign else value).encode()
        quoted = "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in plain)
        self.body.append((f"{name}={quoted}" if sign and name else quoted).encode())


def _refused(option: str, why: str) -> CommandFailed:
    return CommandFailed(_USAGE, f"({_USAGE}) option {option} is refused: {why}")


_HANDLERS: dict[str, Callable[[_Line, str], None]] = {
    "": lambda line, value: line.urls.append(value),
    "--url": lambda line, value: line.urls.append(value),
    "o": lambda line, value: line.outputs.append(value or "-"),
    "O": lambda line, value: line.outputs.append(""),
    "X": lambda line, value: setattr(line, "method", value),
    "w": lambda line, value: setattr(line, "write_out", value),
    "m": _Line.set_timeout,
    "H": _Line.add_given_header,
    "A": lambda line, value: line.add_header(f"User-Agent: {value}"),
    "e": lambda line, value: line.add_header(f"Referer: {value}"),
    "b": _Line.add_cookies,
    "u": _Line.add_user,
    "--oauth2-bearer": lambda line, value: line.add_header(f"Authorization: Bearer {value}"),
    "d": _Line.add_data,
    "--data-raw": lambda line, value: line.body.append(value.encode()),
    "--data-binary": lambda line, value: line.body.append(line.contents(value)),
    "--json": _Line.add_json,
    "--data-urlencode": _Line.add_encoded,
}


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    """Each option with its value; operands as ("", operand)."""
    rest = iter(words)
    for word in rest:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            option = _LONG.get(name, f"--{name}")
            yield option, value if equals else next(rest, "") if option in _WITH_VALUE else ""
        elif word.startswith("-") and len(word) > 1:
            for at, letter in enumerate(word[1:], 2):
                if letter in _WITH_VALUE:
                    yield letter, word[at:] or next(rest, "")
                    break
                yield letter, ""
        else:
            yield "", word


def _transfer(line: _Line, url: str, output: str, call: Call, ask: Ask, files: Files) -> bytes:
    """Request one URL; return the output for stdout. Raises CommandFailed."""
    if line.body:
        line.default_headers(("Content-Type", "application/x-www-form-urlencoded"))
    method = line.method or ("HEAD" if "I" in line.flags else "POST" if line.body else "GET")
    response = fetch(
        ask,
        url,
        line.headers,
        method=method,
        body=b"&".join(line.body),
        follow="L" in line.flags,
        timeout=line.timeout,
    )
    if "f" in line.flags and response.status >= 400:
        raise CommandFailed(_HTTP_ERROR, f"({_HTTP_ERROR}) The requested URL returned error: {response.status}")
    text = (_head(response) if line.flags & {"i", "I"} else b"") + response.body
    after = _written_out(line.write_out, response).encode()
    target = output or name_in(url)
    if not target:
        raise CommandFailed(WRITE, f"({WRITE}) Remote file name has no length")
    if target == "-":
        return text + after
    save(files, call, target, text)
    return after


def _head(response: Response) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {response.reason}"]
    lines += [f"{name}: {text}" for name, text in response.headers]
    return "\r\n".join([*lines, "", ""]).encode()


def _written_out(text: str, response: Response) -> str:
    known = {
        "http_code": response.status,
        "response_code": response.status,
        "size_download": len(response.body),
        "url_effective": response.url,
        "content_type": response.header("content-type"),
    }
    for name, found in known.items():
        text = text.replace(f"%{{{name}}}", str(found))
    return text.replace("\\n", "\n").replace("\\t", "\t")
