"""`event` and `return_value`: after the cell, `handler(event, context)` is called and its JSON value is returned.

It is one of Jupyter's user_expressions, so it works with any kernel, and the cell in the transcript is the caller's
own. The value comes from the guest, so it is hostile.
"""

import base64
import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn, cast

# The name of the expression in the request and in the reply.
NAME = "kernelmcp_return_value"
# Fits into a result beside everything else; larger values belong in a file.
MAX_RETURN_BYTES = 256 * 1024
# Deeper values break JSON libraries on their way to the client.
MAX_DEPTH = 100

# The expression for Python; it awaits an asynchronous handler. Its arguments and its value are base64 of JSON, which
# needs no quoting.
PYTHON = (
    "(lambda b, j, i: b.b64encode(j.dumps("
    "(lambda value: __import__('asyncio').run(value) if i.iscoroutine(value) else value)"
    "(handler(j.loads(b.b64decode('{event}')), j.loads(b.b64decode('{context}')))),"
    " allow_nan=False).encode()).decode())(__import__('base64'), __import__('json'), __import__('inspect'))"
)
_NONE = re.compile(r"(?:name )?'?handler'? is not defined")


class NoReturnValue(Exception):
    """The handler returned no usable value; `name` and `traceback` are those of the guest's exception."""

    def __init__(self, name: str, value: str, traceback: str = "") -> None:
        super().__init__(value)
        self.name, self.value, self.traceback = name, value, traceback


@dataclass(frozen=True)
class HandlerCall:
    """A call of the handler in a cell's language. `template` is that language's expression."""

    event: dict[str, Any]
    template: str = PYTHON

    def expressions(self, context: dict[str, Any]) -> dict[str, str]:
        """The user_expressions of the request."""
        event = self.template.replace("{event}", _encode(self.event))
        return {NAME: event.replace("{context}", _encode(context))}


def _encode(value: dict[str, Any]) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


def return_value(expressions: Any) -> Any:
    """The value that an execute_reply's user_expressions contain. Raises `NoReturnValue`."""
    found: Any = cast("dict[str, Any]", expressions).get(NAME) if isinstance(expressions, dict) else None
    answer = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if answer.get("status") != "ok":
        _raise_error(answer)
    try:
        text = cast("dict[str, Any]", answer["data"])["text/plain"].strip("'\"")
        if len(text) > MAX_RETURN_BYTES * 4 // 3:
            raise NoReturnValue(
                "ReturnValueTooLarge",
                f"handler returned more than {MAX_RETURN_BYTES // 1024} KiB of JSON; write it to a file instead",
            )
        value = json.loads(base64.b64decode(text, validate=True), parse_constant=_no_constant)
        _check_depth(value, MAX_DEPTH)
        # Encoding fails for a lone surrogate and for 1e999, which no client could receive. A number may become longer.
        if len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode()) > MAX_RETURN_BYTES:
            raise NoReturnValue("ReturnValueTooLarge", "the value of handler(event, context) is too large")
        return value
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as exc:
        raise NoReturnValue("ReturnValueError", f"the value of handler(event, context) is not usable: {exc}") from exc


def _raise_error(answer: dict[str, Any]) -> NoReturn:
    name, value = str(answer.get("ename") or "ReturnValueError"), str(answer.get("evalue") or "")
    if not answer:
        value = "no handler was called: after %checkpoint and %restore none is"
    lines: Any = answer.get("traceback")
    traceback = "\n".join(map(str, cast("list[Any]", lines))) if isinstance(lines, list) else ""
    if name in ("NameError", "ReferenceError") and _NONE.match(value):
        value = "with `event`, the code must define a function handler(event, context)"
        traceback = f"{name}: {value}"
    raise NoReturnValue(name, value, traceback)


def _check_depth(value: Any, depth: int) -> None:
    if depth == 0:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, (list, dict)):
        items = cast("dict[str, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
        for item in items:
            _check_depth(item, depth - 1)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
