"""No tool, however its server describes it, gets code into a stub, leaves the folder, or takes long."""

import ast
import json
import keyword
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from kernelmcp.upstreams.catalogue import Catalogue, Tool
from kernelmcp.upstreams.stubs import Rendered, publish, render
from kernelmcp.upstreams.stubs.identifiers import MAX_CHARS as MAX_NAME_CHARS
from kernelmcp.upstreams.stubs.module import MAX_CHARS, NotAsExpected, check

BREAKING_OUT = [
    '"""\nimport os\nos.system("x")\n"""',
    '\\"""\nimport os\n\\"""',
    "\\",
    'ends with a quote"',
    'ends with two""',
    '""""""',
    "''' + __import__('os').system('x') + '''",
    "\\N{DIGIT ONE} \\x41 \\u0041 \\777 {0} %s",
    "from __future__ import annotations",
    "a\rimport os\r",
    "a\x0cimport os\x0b\x85import os\u2028import os\u2029import os",
    "\0NUL",
    "# -*- coding: rot13 -*-\nimport os",
    "\x1b[2J\x1b]0;title\x07 escape \x9b31m",
    "\u202eover\u202c \u2066isolated\u2069 \u200bnothing\u200d \ufeff",
    "tags: \U000e0041\U000e0042 selectors: \U000e0100\ufe0f",
    "lone \ud800 surrogate",
    "  indented\n      more\n\ttab\n",
    "",
    " \n ",
    "x" * 1_000_000,
    "\n" * 1_000_000,
    '"' * 100_000,
]
UNSEEN = {"\u202e", "\u2066", "\u200b", "\u200d", "\ufeff", "\U000e0041", "\U000e0100", "\x1b", "\x9b", "\0", "\x85"}
NAMES = [
    "import",
    "None",
    "True",
    "class",
    "match",
    "__init__",
    "__getattr__",
    "__class__",
    "_",
    "__",
    "",
    " ",
    ".",
    "..",
    "../x",
    "../../etc/passwd",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\0b",
    "a\nb",
    "CON",
    "get-deal",
    "get_deal",
    "get.deal",
    "getDeal",
    "GETDEAL",
    "getdeal",
    "2fa",
    "$filter",
    "tool",
    "Any",
    "Text",
    "TypedDict",
    "取引",
    "é",
    "e\u0301",
    "ﬁle",
    "x" * 300,
    "x" * 299,
    "取" * 500,
    "\ud800",
    "\u202e",
    "self",
    "print",
    "index.json",
    "__init__.py",
    "%2e%2e",
    "~",
    "-",
    "a;import os",
    "a()",
    "a#",
]
ALLOWED = (ast.ImportFrom, ast.ClassDef, ast.Assign, ast.FunctionDef)


def tool(
    name: str = "t", description: str = "", schema: Any = None, output: Any = None, title: str | None = None
) -> Tool:
    return Tool(name, title, description, {} if schema is None else schema, output, None, None, None, "")


def rendered(*tools: Tool, server: str = "crm", **about: str) -> Rendered:
    fields = {"title": "", "version": "", "instructions": ""} | about
    return render([Catalogue(server=server, tools=tools, **fields)], lambda server, tool: True)


def sources(found: Rendered) -> Iterator[tuple[str, str]]:
    for path, text in found.files.items():
        if path.endswith(".py"):
            yield path, text


def assert_harmless(found: Rendered) -> None:
    """Each file is what it must be: a docstring, or imports, classes and one function that does nothing."""
    for path, text in sources(found):
        assert text.isprintable() or all(char.isprintable() or char == "\n" for char in text), path
        body = ast.parse(text).body
        if path.endswith("__init__.py"):
            assert [type(node) for node in body] == [ast.Expr]
            continue
        assert all(isinstance(node, ALLOWED) for node in body), path
        modules = [node.module for node in body if isinstance(node, ast.ImportFrom)]
        assert set(modules) <= {"typing", "kernelmcp_guest.servers"}
        functions = [node for node in ast.walk(ast.Module(body, [])) if isinstance(node, ast.FunctionDef)]
        assert [node.name for node in functions] == [PurePosixPath(path).stem]
        assert [type(node) for node in functions[0].body] == [ast.Expr]
        called = [ast.unparse(node.func) for node in ast.walk(ast.Module(body, [])) if isinstance(node, ast.Call)]
        assert set(called) <= {"tool", "TypedDict"}
        assert called.count("tool") == 1
        attributes = [node for node in ast.walk(ast.Module(body, [])) if isinstance(node, (ast.Attribute, ast.Lambda))]
        assert not attributes
        assert len(text) <= MAX_CHARS


@pytest.mark.parametrize("text", BREAKING_OUT, ids=range(len(BREAKING_OUT)))
def test_words_never_become_code(text: str) -> None:
    key = text[:200]
    schema = {
        "type": "object",
        "title": text,
        "properties": {
            "plain": {"type": "string", "description": text, "default": text[:39], "enum": [text[:50], "other"]},
            key: {"type": "object", "title": text, "properties": {key: {"const": key}, "b": {"description": text}}},
            "many": {"enum": [f"{text[:20]}{i}" for i in range(100)]},
            "format": {"type": "string", "format": text, "minimum": text, "maximum": text},
            "ref": {"$ref": text},
        },
        "required": [key, "plain"],
    }
    found = rendered(
        tool(key or "empty", text, schema, schema, text),
        server=key or "empty",
        title=text,
        version=text,
        instructions=text,
    )
    assert_harmless(found)
    assert not any(char in source for _, source in sources(found) for char in UNSEEN)
    # Not the file that says less: that is for what is too large.
    assert all("**arguments" not in source for _, source in sources(found)), found.files


def test_what_a_description_says_is_said_in_the_docstring() -> None:
    text = 'A """quoted""" word, a \\ and \\n that is no newline.\n    Indented.\nLast"'
    found = ast.parse(rendered(tool("t", text)).files["crm/t.py"]).body[-1]
    assert isinstance(found, ast.FunctionDef)
    assert ast.get_docstring(found) == text


def test_names_are_identifiers_and_stay_in_their_folder(tmp_path: Path) -> None:
    catalogues = [Catalogue(name, "", "", "", tuple(tool(other) for other in NAMES)) for name in NAMES]
    found = render(catalogues, lambda server, tool: True)
    assert len(found.files) == 1 + len(NAMES) * (1 + len(NAMES))
    for path in found.files.keys() - {"index.json"}:
        folder, file = path.split("/")
        for name in (folder, file.removesuffix(".py")):
            assert name.isidentifier()
            assert name.isascii()
            assert not keyword.iskeyword(name)
            assert name == "__init__" or not name.startswith("__")
            assert len(name) < MAX_NAME_CHARS + 20
    assert len({path.casefold() for path in found.files}) == len(found.files)  # on a disk that ignores case
    assert_harmless(rendered(*(tool(name) for name in NAMES)))
    folder = publish(found, tmp_path / "offers")
    written = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    assert written == set(found.files)
    assert [entry.name for entry in tmp_path.iterdir()] == ["offers"]


def test_a_stub_calls_the_tool_that_it_was_made_of() -> None:
    found = rendered(*(tool(name) for name in NAMES))
    index = json.loads(found.files["index.json"])["servers"]["crm"]["tools"]
    said = {}
    for path, text in sources(found):
        function = ast.parse(text).body[-1]
        if isinstance(function, ast.FunctionDef):
            decorator = function.decorator_list[0]
            assert isinstance(decorator, ast.Call)
            server, original = map(ast.literal_eval, decorator.args[:2])
            assert server == "crm"
            said[PurePosixPath(path).stem] = original
    assert sorted(said.values()) == sorted(NAMES)
    assert {name: entry[0] for name, entry in index.items()} == said


def test_no_server_is_called_like_what_the_module_has() -> None:
    names = ["search", "callMCPTool", "test_skills", "ToolError", "skills", "crm"]
    found = render([Catalogue(name, "", "", "", (tool(),)) for name in names], lambda server, tool: True)
    folders = {path.split("/")[0] for path in found.files} - {"index.json"}
    assert folders & set(names) == {"crm"}
    assert len(folders) == len(names)


def test_the_order_of_tools_never_says_which_name_one_has() -> None:
    tools = [tool(name, f"This is {name!r}") for name in NAMES]
    assert rendered(*tools).files == rendered(*reversed(tools)).files
    # What else is there may take a name away, and never give it to another tool.
    both = rendered(tool("get-deal"), tool("get.deal")).files
    assert "crm/get_deal.py" not in both
    with_exact = rendered(tool("get-deal"), tool("get_deal"), tool("get.deal")).files
    assert set(both) < set(with_exact)
    assert "'get_deal'" in with_exact["crm/get_deal.py"] or '"get_deal"' in with_exact["crm/get_deal.py"]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def doubled(key: str, levels: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for level in range(1, levels):
        definitions[f"d{level}"] = {key: [{"$ref": f"#/$defs/d{level - 1}"}] * 2}
    return {"type": "object", "$defs": definitions, "properties": {"a": {"$ref": f"#/$defs/d{levels - 1}"}}}


def growing(levels: int) -> dict[str, Any]:
    """Each reference finds the finished text of the one before, and has it twice."""
    definitions: dict[str, Any] = {"a0": {"type": "string"}}
    for level in range(1, levels):
        before = {"$ref": f"#/$defs/a{level - 1}"}
        lists, maps = {"type": "array", "items": before}, {"type": "object", "additionalProperties": before}
        definitions[f"a{level}"] = {"anyOf": [lists, maps]}
    properties = {f"p{level}": {"$ref": f"#/$defs/a{level}"} for level in range(levels)}
    return {"type": "object", "$defs": definitions, "properties": properties}


def repeated(classes: int, fields: int) -> dict[str, Any]:
    """Many fields of one annotation, found once, that is as long as one may be."""
    long = {"anyOf": [{"enum": ["x" * 100, f"{number}"]} for number in range(12)]}
    each = {"properties": {f"f{number}": {"$ref": "#/$defs/long"} for number in range(fields)}}
    return {"$defs": {"long": long}, "properties": {f"p{number}": each for number in range(classes)}}


REF_LOOPS: list[dict[str, Any]] = [
    {"$ref": "#"},
    {"properties": {"a": {"$ref": "#/properties/a"}}},
    {"properties": {"a": {"$ref": "#/properties/b"}, "b": {"$ref": "#/properties/a"}}},
    {"allOf": [{"$ref": "#"}]},
    {"properties": {"a": {"allOf": [{"$ref": "#/properties/a"}, {"type": "object"}]}}},
    {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
    {"items": {"$ref": "#"}, "type": "array"},
    {"additionalProperties": {"$ref": "#"}, "type": "object"},
    {"properties": {"a": {"$ref": "#/properties"}}},
]
HUGE: list[Any] = [
    nested(300),
    doubled("anyOf", 60),
    doubled("allOf", 60),
    doubled("oneOf", 60),
    growing(13),
    repeated(20, 100),
    {
        "properties": {f"a{i}": {"type": "string"} for i in range(100_000)},
        "required": [f"a{i}" for i in range(100_000)],
    },
    {
        "properties": {
            f"a{i}": {"properties": {f"b{i}_{j}": {"description": "d" * 999} for j in range(50)}} for i in range(90)
        }
    },
    {"properties": {"a": {"enum": [f"value {i}" for i in range(1_000)]}}},
    {"properties": {"a": {"enum": ["x" * 1_000_000]}}},
    {"properties": {"a": {"enum": list(range(200_000))}}},
    {"properties": {"a": {"anyOf": [{"const": i} for i in range(50_000)]}}},
    {"properties": {"a": {"type": ["string"] * 50_000}}},
    {"properties": {"a" * 1_000_000: {"type": "string"}}},
    {"properties": {"a": {"default": 10**400, "minimum": 10**4000, "enum": [10**5000]}}},
    {"properties": {"a": {"default": float("inf"), "minimum": float("nan"), "const": float("inf")}}},
    {"properties": {"a": {"$ref": "#/" + "a/" * 100_000}}},
    {"properties": {f"{'x' * (i % 7)}${i}": {"properties": {f"$k{j}": {} for j in range(9)}} for i in range(90)}},
]
ODD: list[Any] = [
    True,
    False,
    None,
    [],
    "string",
    7,
    {"type": {}},
    {"type": [[]]},
    {"type": "object", "properties": []},
    {"properties": {"a": True, "b": False, "c": None, "d": [], "e": "x", "f": 3}},
    {"properties": {"a": {"enum": {}}, "b": {"enum": []}, "c": {"enum": [[], {}]}, "d": {"enum": [None]}}},
    {"properties": {"a": {"anyOf": []}, "b": {"anyOf": {}}, "c": {"allOf": []}, "d": {"oneOf": [1, 2]}}},
    {"properties": {"a": {"items": [True, {}]}, "b": {"prefixItems": 3}, "c": {"type": "array", "items": False}}},
    {"required": {}, "properties": {"a": {"$ref": 3}, "b": {"$ref": {}}, "c": {"description": [], "title": {}}}},
    {"required": ["missing", 3, None, []], "additionalProperties": 7},
    {"properties": {"a": {"const": {"x": 1}}, "b": {"const": [1]}, "c": {"default": {"x": 1}}, "d": {"default": []}}},
]


@pytest.mark.parametrize("schema", REF_LOOPS + HUGE + ODD, ids=range(len(REF_LOOPS + HUGE + ODD)))
def test_a_schema_takes_bounded_time_and_room(schema: Any) -> None:
    began = time.process_time()
    found = rendered(tool("t", "", schema, schema))
    assert time.process_time() - began < 5
    assert_harmless(found)
    assert sum(map(len, found.files.values())) < 2 * MAX_CHARS


@pytest.mark.parametrize("schema", [growing(13), repeated(20, 100)], ids=["growing", "repeated"])
def test_a_text_that_references_repeat_takes_bounded_memory(schema: Any) -> None:
    tracemalloc.start()
    try:
        rendered(tool("t", "", schema, schema))
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()


def test_tools_beyond_what_fits_are_named_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelmcp.upstreams.stubs.rendered.MAX_TOTAL_CHARS", 10_000)
    found = rendered(*(tool(f"t{i:03}", "word " * 300) for i in range(100)), tool("é" * 100_000))
    assert sum(len(text) for _, text in sources(found)) < 30_000
    assert " that do not fit: " in found.files["crm/__init__.py"]


@pytest.mark.parametrize(
    "source",
    [
        'from kernelmcp_guest.servers import tool\nimport os\n\n@tool("s", "t")\ndef t():\n    """d\n    """\n',
        'from os import tool\n\n@tool("s", "t")\ndef t():\n    """d\n    """\n',
        'from kernelmcp_guest.servers import tool\n\n@tool("s", "u")\ndef t():\n    """d\n    """\n',
        'from kernelmcp_guest.servers import tool\n\n@tool("s", "t")\ndef t(a=print()):\n    """d\n    """\n',
        'from kernelmcp_guest.servers import tool\n\n@tool("s", "t")\ndef t() -> print():\n    """d\n    """\n',
        'from kernelmcp_guest.servers import tool\n\n@tool("s", "t")\ndef t():\n    """d\n    """\n    print()\n',
        'from kernelmcp_guest.servers import tool\n\n@tool("s", "t")\ndef t():\n    """e\n    """\n',
        'from kernelmcp_guest.servers import tool\n\n@tool("s", "t")\n@print\ndef t():\n    """d\n    """\n',
        'from kernelmcp_guest.servers import tool\n\n@tool("s", print())\ndef t():\n    """d\n    """\n',
        'from kernelmcp_guest.servers import tool\n\n@tool("s", "t")\ndef t():\n    """d\n    """\nt = print\n',
    ],
)
def test_the_finished_file_is_read_again(source: str) -> None:
    good = 'from kernelmcp_guest.servers import tool\n\n@tool("s", "t")\ndef t():\n    """d\n    """\n'
    check(good, ("s", "t"), "t", "d", 0, 0)
    with pytest.raises((NotAsExpected, ValueError)):
        check(source, ("s", "t"), "t", "d", 0, 0)
