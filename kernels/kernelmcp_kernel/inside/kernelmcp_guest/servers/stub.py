"""The decorator in the files of /servers: turns a signature with a docstring into a function that calls the tool.

Wrong arguments are detected here, without a call. `...` is an argument that is not sent.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from kernelmcp_guest.servers import pending_calls

Function = Callable[..., Any]


class _Shown:
    """An annotation or a default in a signature, shown as in the file."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


_NOT_SENT = _Shown("...")


def tool(server: str, name: str, renamed: Mapping[str, str] | None = None) -> Callable[[Function], Function]:
    """Decorate a stub. `server` is the owner's name for the server, `name` the server's name for the tool; `renamed`
    maps Python names of arguments to the server's names that are not valid in Python."""
    keys = dict(renamed or {})
    here = {key: own for own, key in keys.items()}

    def decorate(stub: Function) -> Function:
        signature = inspect.signature(stub)
        shown = _as_written(stub, signature)
        rest = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)

        def arguments(args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
            try:
                bound = signature.bind(*args, **{here.get(key, key): value for key, value in given.items()}).arguments
            except TypeError as error:
                raise TypeError(f"{stub.__name__}: {error}; it is {stub.__name__}{shown}") from None
            others: dict[str, Any] = bound.pop(rest, {}) if rest else {}
            return {keys.get(key, key): value for key, value in {**bound, **others}.items() if value is not ...}

        def function(*args: Any, **given: Any) -> Any:
            return pending_calls.call(server, name, arguments(args, given))

        def aio(*args: Any, **given: Any) -> Any:
            return pending_calls.call_async(server, name, arguments(args, given))

        doc = f"{inspect.getdoc(stub)}\n\nThe MCP server {server!r} says this of its tool {name!r}."
        for each, title in ((function, stub.__name__), (aio, f"{stub.__name__}.aio")):
            each.__name__ = each.__qualname__ = title
            each.__module__, each.__doc__ = stub.__module__, doc
            vars(each).update(__signature__=shown, __wrapped__=stub)
        # `from servers.crm.get_deal import get_deal`: the module is its function.
        vars(function).update({"aio": aio, stub.__name__: function})
        return function

    return decorate


def _as_written(stub: Function, signature: inspect.Signature) -> inspect.Signature:
    """The signature as it appears in the file."""

    def shown(annotation: Any) -> Any:
        if annotation is inspect.Signature.empty:
            return annotation
        return _Shown(
            inspect.formatannotation(annotation)
            .replace(f"{stub.__module__}.", "")
            .replace(f"{__package__}.results.", "")
        )

    parameters = [
        p.replace(annotation=shown(p.annotation), default=_NOT_SENT if p.default is ... else p.default)
        for p in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters, return_annotation=shown(signature.return_annotation))
