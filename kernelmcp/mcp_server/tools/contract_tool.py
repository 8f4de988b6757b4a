"""A tool whose errors have the contract's shape: refused arguments and `ServerError`s become results with
`structuredContent.error`, and an unknown argument is refused with the names that would do.

Must not know sessions.
"""

import difflib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import structlog
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from kernelmcp.errors import InternalError, InvalidArgument, ServerError, StorageFailed
from kernelmcp.mcp_server.callers import REFUSED_KEY
from kernelmcp.mcp_server.results.execution_result import error_result
from kernelmcp.mcp_server.schemas import ContractError
from kernelmcp.output.sanitize import clean

log = structlog.get_logger(__name__)
_ERROR_SCHEMA = TypeAdapter(ContractError).json_schema()
# What other systems that run code for models call an argument, and our name for it.
HABITS = {"template": "language", "runtime": "language", "kernel": "language", "cmd": "command", "source": "code"}
# What can be wrong with an argument, by pydantic's name for it, which fills the gaps.
PROBLEMS = {
    "string_type": "must be text",
    "string_unicode": "must be text without lone surrogates",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    "finite_number": "must be a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    "dict_type": "must be an object",
    "list_type": "must be a list of texts",
    "literal_error": "must be {expected}",
    "greater_than": "must be greater than {gt:,.15g}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
}
# Unknown arguments that a message names, and how much of each.
MAX_PROBLEMS = 5
MAX_NAME_CHARS = 100
# Arguments that clients of MCP 2026-07-28 repeat in an HTTP header, `Mcp-Param-` and this, so that a load balancer can
# send a call to the server that has the session (docs/scaling.md).
HEADERS = {"session_id": "Session", "execution_id": "Execution"}
ToolFunction = Callable[..., Awaitable[CallToolResult]]


class ContractTool(Tool):
    """`run` replaces mcp's: its errors are text only, and it would validate our own results on each call."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        try:
            check_not_refused(context)
            validated = self._validated(arguments)
            if self.context_kwarg is not None:
                validated[self.context_kwarg] = context
            return await self.fn(**validated)
        except ServerError as exc:
            if exc.is_of_host:
                log.error("tool failed", tool=self.name, error=exc.message, **exc.context)
            return error_result(exc)
        except OSError as exc:
            log.exception("tool failed", tool=self.name)
            reason = exc.strerror or type(exc).__name__
            return error_result(
                StorageFailed(
                    f"the server's disk or operating system refused: {reason}",
                    "Try again in a moment. The operator should check its home directory and limits.",
                )
            )
        except Exception:
            log.exception("tool failed", tool=self.name)
            return error_result(InternalError("the server failed; its log says why", "Try again, or report a bug."))

    def _validated(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Raises InvalidArgument."""
        known = list(self.fn_metadata.arg_model.model_fields)
        unknown = [name for name in arguments if name not in known]
        problems = {name[:MAX_NAME_CHARS]: _unknown(name[:MAX_NAME_CHARS], known) for name in unknown[:MAX_PROBLEMS]}
        if (more := len(unknown) - MAX_PROBLEMS) > 0:
            problems[""] = f"and {more:,} more that it does not have"
        try:
            given = {name: value for name, value in arguments.items() if name in known}
            validated = self.fn_metadata.arg_model.model_validate(given)
            if not problems:
                return validated.model_dump_one_level()
        except ValidationError as exc:
            problems |= _explained(exc.errors(include_url=False, include_input=False))
        raise InvalidArgument(
            clean(f"{self.name}: " + "; ".join(problems.values())),
            f"{self.name} takes {', '.join(known)}." if known else f"{self.name} takes no arguments.",
            tool=self.name,
            arguments=[clean(name) for name in problems if name],
        )


def check_not_refused(context: Context[Any, Any]) -> None:
    """Raise the error for which `guard` refused the request, where only a tool's answer reaches the client."""
    request = context.request_context.request
    if request is not None and (error := request.scope.get(REFUSED_KEY)) is not None:
        raise error


def _unknown(name: str, known: list[str]) -> str:
    habit = HABITS.get(name)
    close = [habit] if habit in known else difflib.get_close_matches(name, known, n=1)
    return f"there is no argument {name!r}" + (f", did you mean {close[0]!r}?" if close else "")


def _explained(errors: list[ErrorDetails]) -> dict[str, str]:
    """What is wrong with each argument, by its name: of one that may have several forms, why it has none of them."""
    problems: dict[str, list[str]] = {}
    for error in errors:
        # After the name come the form that pydantic tried, and the place in a list.
        name, *where = map(str, error["loc"])
        kind = "list_type" if where and isinstance(error["loc"][-1], int) else error["type"]
        problem = "is missing" if kind == "missing" else PROBLEMS.get(kind, "is not valid")
        problems.setdefault(name, []).append(problem.format(**error.get("ctx", {})))
    return {
        name: f"{name!r} {found[0]}" + "".join(f" or {other.removeprefix('must be ')}" for other in found[1:])
        for name, found in problems.items()
    }


def contract_tool(
    function: ToolFunction,
    title: str,
    annotations: ToolAnnotations,
    choices: Mapping[str, list[str]] | None = None,
    more: str = "",
) -> ContractTool:
    """From a function whose return annotation is `Annotated[CallToolResult, <its structured content>]`.

    `choices`: the values that some optional arguments take, where only a running server knows them. They are shown to
    the model; the function itself refuses others. `more`: what only a running server knows to say.
    """
    description = "\n".join(line.strip() for line in (function.__doc__ or "").strip().splitlines()) + more
    tool = cast(
        "ContractTool",
        ContractTool.from_function(
            function, title=title, annotations=annotations, description=description, structured_output=True
        ),
    )
    model = tool.fn_metadata.arg_model
    model.model_config = model.model_config | ConfigDict(extra="forbid")
    model.model_rebuild(force=True)
    tool.parameters = concise(model.model_json_schema(by_alias=True))
    for argument, values in (choices or {}).items():
        shown = tool.parameters["properties"][argument]
        shown.pop("maxLength", None)
        shown["enum"] = values
    if tool.fn_metadata.output_schema is not None:
        tool.fn_metadata.output_schema = with_errors(tool.fn_metadata.output_schema)
    return tool


def add_headers(tool: ContractTool) -> None:
    """Name the headers of its arguments. Only for HTTP: every conversation pays for the list of tools."""
    for argument, header in HEADERS.items():
        if argument in tool.parameters["properties"]:
            tool.parameters["properties"][argument]["x-mcp-header"] = header


def concise(schema: dict[str, Any]) -> dict[str, Any]:
    """An input schema without what says nothing to a model: titles, and null as a way to leave an argument out (which
    is accepted all the same)."""
    properties: dict[str, Any] = {}
    for name, given in schema.get("properties", {}).items():
        shown = {key: value for key, value in given.items() if key != "title"}
        kinds = [kind for kind in shown.pop("anyOf", []) if kind != {"type": "null"}]
        if len(kinds) == 1:
            shown |= kinds[0]
        elif kinds:
            shown["anyOf"] = kinds
        if shown.get("default", ...) is None:
            del shown["default"]
        if shown.get("additionalProperties") is True:
            del shown["additionalProperties"]
        properties[name] = shown
    return {key: value for key, value in schema.items() if key != "title"} | {"properties": properties}


def with_errors(schema: dict[str, Any]) -> dict[str, Any]:
    """An output schema that admits the contract's errors as well: some clients check them against it, and give their
    model a complaint about the schema instead of our advice (TypeScript SDK 1.x)."""
    refused = {"$ref": "#/$defs/ContractError"}
    properties = dict(schema["properties"])
    shown = properties.get("error")
    properties["error"] = {"anyOf": [*shown["anyOf"], refused]} if shown else refused
    return {
        **{key: value for key, value in schema.items() if key != "required"},
        "$defs": {**schema.get("$defs", {}), "ContractError": _ERROR_SCHEMA},
        "properties": properties,
        "anyOf": [
            {"required": schema.get("required", [])},
            {"required": ["error"], "properties": {"error": refused}},
        ],
    }


def structured_result(structured: Any, text: str) -> CallToolResult:
    """A result that is data plus a sentence about it."""
    return CallToolResult(content=[TextContent(text=text)], structured_content=dict(structured))
