"""The file of one tool: TypedDicts, and one function with signature and docstring.

A description must never become code. It is quoted where it stands, and the finished file is parsed again: it must have
exactly the expected statements, and its strings must be those that were put in (`check`).
"""

import ast
import re
from dataclasses import dataclass
from itertools import islice

from kernelmcp.output.sanitize import as_dict
from kernelmcp.upstreams.catalogue import Tool
from kernelmcp.upstreams.stubs.annotations import (
    IMPORTED,
    Annotations,
    Classes,
    Schema,
    field_doc,
    text_of,
)
from kernelmcp.upstreams.stubs.signature import Parameters, parameters
from kernelmcp.upstreams.stubs.untrusted_text import docstring, lines, literal, one_line, without_beginning

MAX_CHARS = 32_000
MAX_DESCRIPTION_CHARS = 2_000
MAX_ABOUT_CHARS = 300
MAX_RESULT_KEYS = 5
RUNTIME = "kernelmcp_guest.servers"
# The file uses these names, so no function may have them.
RESERVED = frozenset({*IMPORTED, "tool"})
# The result type of a tool that does not declare one.
ANY_CONTENT = "Text | Blob | list"
_RESULTS = ("Blob", "Text")
_TYPING = ("Any", "Literal", "NotRequired", "TypedDict")


@dataclass(frozen=True)
class Stub:
    source: str
    brief: str
    """`get_deal(id, fields=...)`"""
    result: str
    """The result, for a line of a search: `{id, name}`, or nothing."""
    about: str
    """The beginning of the description, for a search."""


class NotAsExpected(Exception):
    """A finished file differs from its input. Our bug, found before the file is used."""


def stub(server: str, tool: Tool, name: str, said_of_all: str = "") -> Stub:
    """Render a tool. Never raises: a tool that is too large or too odd gets a simpler file. `said_of_all` is the common
    beginning of descriptions whose first sentence says nothing about this tool."""
    about = without_beginning(one_line(tool.description or tool.title, MAX_ABOUT_CHARS), said_of_all)
    try:
        return _full(server, tool, name, about)
    except (NotAsExpected, SyntaxError, RecursionError, MemoryError, ValueError, TypeError):
        pass
    return Stub(_plain(server, tool, name, about), f"{name}(...)", "", about)


def _full(server: str, tool: Tool, name: str, about: str) -> Stub:
    classes = Classes(RESERVED | {name})
    schema = as_dict(tool.input_schema)
    shown = parameters(schema, Annotations(schema, classes))
    classes.said.update(
        filter(None, (field_doc(part) for part in islice(as_dict(schema.get("properties")).values(), 100)))
    )
    returned, result = _returned(tool, name, classes)
    doc = _documentation(tool, name, shown)
    signature = f"{shown.text} -> {returned}"
    used = set(re.findall(r"\w+", "\n".join([*classes.sources, signature])))
    typing = [word for word in _TYPING if word in used]
    source = "\n".join(
        [
            *([f"from typing import {', '.join(typing)}", ""] if typing else []),
            f"from {RUNTIME} import {', '.join([*(word for word in _RESULTS if word in used), 'tool'])}",
            *(f"\n\n{each}" for each in classes.sources),
            "",
            "",
            *_function(server, tool.name, name, signature, doc, shown.renamed),
        ]
    )
    if len(source) > MAX_CHARS:
        raise ValueError("too large")  # before it is parsed, which takes a hundred times its size
    check(source, (server, tool.name), name, doc, len(classes.sources), classes.functional)
    return Stub(source, f"{name}{shown.brief}", result, about)


def _plain(server: str, tool: Tool, name: str, about: str) -> str:
    doc = about or name
    head = f"from typing import Any\n\nfrom {RUNTIME} import tool\n\n\n"
    source = head + "\n".join(_function(server, tool.name, name, "(**arguments: Any) -> Any", doc, {}))
    check(source, (server, tool.name), name, doc, 0, 0)
    return source


def _function(server: str, original: str, name: str, signature: str, doc: str, renamed: dict[str, str]) -> list[str]:
    marks = f", {{{', '.join(f'{literal(k)}: {literal(v)}' for k, v in renamed.items())}}}" if renamed else ""
    return [
        f"@tool({literal(server)}, {literal(original)}{marks})",
        f"def {name}{signature}:",
        f'    """{docstring(_indented(doc))}"""',
        "",
    ]


def _indented(doc: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in doc.split("\n")).strip() + "\n    "


def _documentation(tool: Tool, name: str, shown: Parameters) -> str:
    found = lines(tool.description or tool.title, MAX_DESCRIPTION_CHARS) or [name]
    notes = [f"{each.name}: {each.doc}" for each in shown.listed if each.doc]
    marks = [] if not tool.destructive else ["It may change or delete what is there."]
    return "\n".join([*found, *([""] if notes or marks else []), *notes, *marks]).strip()


def _returned(tool: Tool, name: str, classes: Classes) -> tuple[str, str]:
    """The annotation of a call's result, and a summary of its keys."""
    if tool.output_schema is None:
        return ANY_CONTENT, ""
    schema = tool.output_schema
    found = Annotations(schema, classes).of(schema, f"{name}_result")
    return found, _keys(schema, Annotations(schema, Classes(set())))


def _keys(schema: Schema, annotations: Annotations) -> str:
    keys = list(as_dict(annotations.merged(schema).get("properties")))[: MAX_RESULT_KEYS + 1]
    shown = [one_line(text_of(key), 30) for key in keys[:MAX_RESULT_KEYS]]
    return f"{{{', '.join([*shown, *(['...'] if len(keys) > MAX_RESULT_KEYS else [])])}}}" if shown else ""


# -- the finished file ----------------------------------------------------------------------------------------------

_IN_ANNOTATIONS = {
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.Subscript,
    ast.Tuple,
    ast.BinOp,
    ast.BitOr,
    ast.UnaryOp,
    ast.USub,
    ast.arguments,
    ast.arg,
}
_IN_CLASSES = _IN_ANNOTATIONS | {ast.AnnAssign, ast.Store}


def check(source: str, ids: tuple[str, str], name: str, doc: str, classes: int, functional: int) -> None:
    """Raises `NotAsExpected` unless this is a valid stub: imports, classes, one function that does nothing."""
    *body, function = ast.parse(source).body
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    rest = body[len(imports) :]
    _require(body[: len(imports)] == imports and len(rest) == classes)
    _require([node.module for node in imports][-1:] == [RUNTIME] and len(imports) <= 2)
    _require({node.module for node in imports} <= {"typing", RUNTIME})
    calls = [node for node in rest if isinstance(node, ast.Assign)]
    _require(len(calls) == functional)
    for node in rest:
        _check_call(node) if isinstance(node, ast.Assign) else _check_class(node)
    _require(isinstance(function, ast.FunctionDef) and function.name == name)
    if isinstance(function, ast.FunctionDef):
        _check_function(function, ids, doc)


def _require(holds: bool) -> None:
    if not holds:
        raise NotAsExpected


def _only(node: ast.AST | None, allowed: set[type]) -> None:
    if node is not None:
        _require(all(type(part) in allowed for part in ast.walk(node)))


def _check_class(node: ast.stmt) -> None:
    _require(isinstance(node, ast.ClassDef))
    if isinstance(node, ast.ClassDef):
        _require([ast.unparse(base) for base in node.bases] == ["TypedDict"] and not node.keywords)
        _require(not node.decorator_list)
        for field in node.body:
            _require(isinstance(field, ast.AnnAssign) and field.value is None)
            _only(field, _IN_CLASSES)


def _check_call(node: ast.Assign) -> None:
    call = node.value
    _require(len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and isinstance(call, ast.Call))
    if isinstance(call, ast.Call):
        _require(isinstance(call.func, ast.Name) and call.func.id == "TypedDict" and not call.keywords)
        for argument in call.args:
            _only(argument, _IN_ANNOTATIONS | {ast.Dict})


def _check_function(node: ast.FunctionDef, ids: tuple[str, str], doc: str) -> None:
    _only(node.args, _IN_ANNOTATIONS)
    _only(node.returns, _IN_ANNOTATIONS)
    _require(
        len(node.body) == 1 and ast.get_docstring(node, clean=False) == _indented(doc) and len(node.decorator_list) == 1
    )
    decorator = node.decorator_list[0]
    _require(isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id == "tool")
    if isinstance(decorator, ast.Call):
        _require(not decorator.keywords)
        _require(tuple(map(ast.literal_eval, decorator.args[:2])) == ids and len(decorator.args) <= 3)
        for argument in decorator.args:
            _only(argument, {ast.Constant, ast.Dict, ast.Load})
