"""Checks guests' messages about programs and commands before they reach another guest: each guest is hostile to all."""

from __future__ import annotations

import base64
import binascii
from typing import Any, cast

from kernelmcp_kernel.guests.host_calls import HostCallError

Content = dict[str, Any]

KEYBOARD_INTERRUPT = "interrupted"

# A shell's exit code for an interrupted program: 128 plus the number of SIGINT.
_INTERRUPTED = 130

# A command, its arguments or its environment, characters: Linux's limit for both together.
_MAX_TEXT = 2 * 2**20
_MAX_WORDS = 10_000
_MAX_PATH = 4096

# Standard input and output, characters of base64. One guest message has at most 48 MiB, with all its fields.
_MAX_BYTES = 48 * 2**20

_MAX_TIMEOUT_SECONDS = 10**7


def checked_program(call: Content) -> Content:
    """Check the fields of a program. Raises HostCallError."""
    argv: Any = call.get("argv")
    if not isinstance(argv, list) or not argv:
        raise HostCallError("a program is its name and its arguments")
    output = call.get("output")
    if output not in (None, "apart", "merged"):
        raise HostCallError("output is apart, merged or null")
    return {"argv": _texts(cast("list[Any]", argv)), "output": output, **_surroundings(call)}


def checked_command(call: Content) -> tuple[Content, float | None]:
    """The shell's request for a command, and the seconds until it is interrupted. Raises HostCallError."""
    command, timeout = call.get("command"), call.get("timeout")
    if not isinstance(command, str) or len(command) > _MAX_TEXT:
        raise HostCallError(f"a command is text of at most {_MAX_TEXT:,} characters")
    usable = isinstance(timeout, int | float) and 0 <= timeout <= _MAX_TIMEOUT_SECONDS
    asked = {
        "code": command,
        "capture": bool(call.get("capture")),
        "unset": _unset(call),
        **_surroundings(call),
    }
    return asked, float(cast("float", timeout)) if usable else None


def checked_variables(reply: Content) -> Content:
    """What Python's code has changed of its environment variables. Raises HostCallError."""
    return {"environment": _surroundings(reply)["environment"] or {}, "unset": _unset(reply)}


def checked_result(reply: Content) -> Content:
    """The result of a program, as reported by its guest. Raises HostCallError."""
    if _is_interrupt(reply):
        return {"exit_code": _INTERRUPTED, "stdout": "", "stderr": ""}
    if reply.get("status") != "ok":
        raise HostCallError(f"the program could not be run: {str(reply.get('evalue'))[:1000]}")
    return {"exit_code": _exit_code(reply), "stdout": _bytes(reply, "stdout"), "stderr": _bytes(reply, "stderr")}


def checked_done(reply: Content, capture: bool) -> Content:
    """The result of a command, as reported by the shell. Raises HostCallError."""
    if not _is_interrupt(reply) and reply.get("status") != "ok":
        raise HostCallError(f"the shell could not do it: {str(reply.get('evalue'))[:1000]}")
    interrupted = _is_interrupt(reply) or reply.get("interrupted") is True
    if capture:
        return {**checked_result(reply), "interrupted": interrupted}
    return {"exit_code": _INTERRUPTED if _is_interrupt(reply) else _exit_code(reply), "interrupted": interrupted}


def _is_interrupt(reply: Content) -> bool:
    return reply.get("status") == "error" and reply.get("ename") == "KeyboardInterrupt"


def _exit_code(reply: Content) -> int:
    code = reply.get("exit_code")
    if not isinstance(code, int) or isinstance(code, bool):
        raise HostCallError("an exit code is a number")
    return code & 0xFF


def _unset(content: Content) -> list[str]:
    unset: Any = content.get("unset") or []
    if not isinstance(unset, list):
        raise HostCallError("variables to unset are a list")
    return _texts(cast("list[Any]", unset))


def _surroundings(call: Content) -> Content:
    cwd, environment = call.get("cwd"), call.get("environment")
    if cwd is not None and not (isinstance(cwd, str) and len(cwd) <= _MAX_PATH):
        raise HostCallError("a working directory is a path, or null")
    if environment is not None:
        if not isinstance(environment, dict):
            raise HostCallError("an environment is an object, or null")
        variables = cast("dict[str, Any]", environment)
        environment = dict(zip(_texts(list(variables)), _texts(list(variables.values())), strict=True))
    stdin = None if call.get("stdin") is None else _bytes(call, "stdin")
    return {"cwd": cwd, "environment": environment, "stdin": stdin}


def _texts(values: list[Any]) -> list[str]:
    if len(values) > _MAX_WORDS or not all(isinstance(value, str) for value in values):
        raise HostCallError(f"arguments and variables are text, and at most {_MAX_WORDS:,}")
    if sum(map(len, values)) > _MAX_TEXT:
        raise HostCallError(f"arguments and variables are at most {_MAX_TEXT:,} characters")
    return values


def _bytes(content: Content, name: str) -> str:
    text = content.get(name)
    if not isinstance(text, str):
        raise HostCallError(f"{name} is base64")
    if len(text) > _MAX_BYTES:
        raise HostCallError(f"{name} is over the limit of {_MAX_BYTES * 3 // 4 >> 20} MiB: use a file")
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise HostCallError(f"{name} is base64") from None
    return text
