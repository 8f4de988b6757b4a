"""Shared by `curl` and `wget`: a request as a host call, checked and made by the kernel process, and files for the
response."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from kernelmcp_shell.builtin_interface import CommandFailed, Result

if TYPE_CHECKING:
    from typing import Any

    from kernelmcp_shell.builtin_interface import Ask, Call
    from kernelmcp_shell.files import Files

# curl's exit statuses.
URL_WRONG, NOT_FOUND, WRITE, TOO_LONG = 3, 6, 23, 28

Headers = list[tuple[str, str]]


class Response:
    def __init__(self, value: dict[str, Any]) -> None:
        self.status = int(value["status"])
        self.reason = str(value["reason"])
        self.headers: Headers = [(str(name), str(text)) for name, text in value["headers"]]
        self.body = base64.b64decode(str(value["body"]))
        self.url = str(value["url"])

    def header(self, wanted: str) -> str:
        return next((text for name, text in self.headers if name.lower() == wanted), "")


def fetch(
    ask: Ask,
    url: str,
    headers: Headers,
    *,
    method: str = "GET",
    body: bytes = b"",
    follow: bool = True,
    timeout: float | None = None,
) -> Response:
    """Make a request. Raises CommandFailed with curl's exit status and message."""
    answer = ask(
        {
            "call": "fetch",
            "method": method,
            "url": url,
            "headers": headers,
            "body": base64.b64encode(body).decode("ascii") if body else None,
            "follow": follow,
            "timeout": timeout,
        }
    )
    value: Any = answer.get("value")
    if value is not None:
        return Response(value)
    error = str(answer.get("error"))
    code = URL_WRONG if "cannot be requested" in error else TOO_LONG if "took longer" in error else NOT_FOUND
    raise CommandFailed(code, f"({code}) {error}")


def save(files: Files, call: Call, target: str, body: bytes) -> None:
    """Write the response to a file. Raises CommandFailed."""
    try:
        files.write(call.path(target), body)
    except OSError as error:
        raise CommandFailed(WRITE, f"({WRITE}) Failed to open {target}: {error.strerror}") from None


def with_scheme(url: str) -> str:
    return url if "://" in url else f"http://{url}"


def name_in(url: str) -> str:
    """The last part of a URL's path; may be empty."""
    path = url.partition("://")[2].partition("?")[0].partition("#")[0]
    return path.rpartition("/")[2] if "/" in path else ""


def printed(call: Call, stdout: bytes, stderr: str, exit_code: int) -> Result:
    try:
        return Result(stdout.decode(), stderr, exit_code)
    except UnicodeDecodeError:
        stderr += f"{call.name}: ({WRITE}) this is not text: let it write to a file\n"
        return Result("", stderr, WRITE)
