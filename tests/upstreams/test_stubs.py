"""Schemas as signatures, and their files as a folder."""

import ast
import json
import os
import stat
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelmcp.upstreams.catalogue import Catalogue, Tool
from kernelmcp.upstreams.stubs import Rendered, publish, render
from kernelmcp.upstreams.stubs.published import KEPT_SECONDS, MAX_KEPT, TAKEN_SECONDS

from .test_stubs_hostile import HUGE, NAMES, ODD, REF_LOOPS, rendered, tool

TEXT = {"type": "string"}
NODE = {
    "type": "object",
    "properties": {"name": TEXT, "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
}
ODD_NODE = {"type": "object", "properties": {"$next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}


def signature(properties: Any, required: Any = (), **more: Any) -> str:
    source = rendered(tool("t", "", {"type": "object", "properties": properties, "required": list(required), **more}))
    return next(line for line in source.files["crm/t.py"].splitlines() if line.startswith("def "))[4:].split(" -> ")[0]


@pytest.mark.parametrize(
    ("schema", "annotation"),
    [
        (TEXT, "str"),
        ({"type": "integer"}, "int"),
        ({"type": "number"}, "float"),
        ({"type": "boolean"}, "bool"),
        ({"type": "null"}, "None"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"type": ["null", "string"]}, "str | None"),
        ({"anyOf": [{"type": "integer"}, TEXT, {"type": "null"}]}, "int | str | None"),
        ({"oneOf": [TEXT, TEXT]}, "str"),
        ({"anyOf": [TEXT, {}]}, "Any"),
        ({}, "Any"),
        (True, "Any"),
        (False, "Any"),
        ({"enum": ["a", "b"]}, 'Literal["a", "b"]'),
        ({"enum": ["a", None]}, 'Literal["a"] | None'),
        ({"enum": [1, 2.5]}, "Any"),
        ({"type": "number", "enum": [1, 2.5]}, "float"),
        ({"const": "x"}, 'Literal["x"]'),
        ({"type": "string", "enum": [f"v{i}" for i in range(1000)]}, "str"),
        ({"type": "array"}, "list[Any]"),
        ({"type": "array", "items": TEXT}, "list[str]"),
        ({"items": TEXT}, "list[str]"),
        ({"type": "array", "prefixItems": [TEXT, {"type": "integer"}]}, "list[str | int]"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "dict[str, int]"),
        ({"type": "object", "properties": {"b": TEXT}}, "A"),
        ({"type": "object", "title": "My thing", "properties": {"b": TEXT}}, "MyThing"),
        ({"type": "object", "title": "None", "properties": {"b": TEXT}}, "None_"),
        ({"type": "object", "title": "TypedDict", "properties": {"b": TEXT}}, "TypedDict_"),
        ({"allOf": [{"properties": {"b": TEXT}}, {"properties": {"c": TEXT}}]}, "A"),
        ({"allOf": [TEXT]}, "str"),
        ({"$ref": "#/$defs/Name"}, "str"),
        ({"$ref": "#/$defs/nowhere"}, "Any"),
        ({"$ref": "https://example.com/schema"}, "Any"),
        ({"$ref": "#/$defs/Node"}, "Node"),
    ],
    ids=str,
)
def test_a_schema_is_an_annotation(schema: Any, annotation: str) -> None:
    definitions = {"Name": TEXT, "Node": NODE}
    assert signature({"a": schema}, ["a"], **{"$defs": definitions}) == f"t(a: {annotation})"


def test_required_arguments_come_first_and_the_rest_by_name() -> None:
    properties = {"a": TEXT, "b": TEXT, "c": {"type": "integer", "default": 3}, "d": {**TEXT, "default": None}}
    found = signature(properties, ["b", "not there"])
    assert found == "t(b: str, *, a: str = ..., c: int = 3, d: str = None)"


@pytest.mark.parametrize(
    ("default", "shown"),
    [("x", '"x"'), ("it's", '"it\'s"'), ("x" * 99, "..."), (-1.5, "-1.5"), (True, "True"), ([], "..."), ({}, "...")],
)
def test_a_default_is_shown_where_it_is_short(default: Any, shown: str) -> None:
    assert signature({"a": {"default": default}}) == f"t(*, a: Any = {shown})"


def test_what_takes_more_arguments_says_so() -> None:
    assert signature({}, additionalProperties=True) == "t(**more: Any)"
    assert signature({"more": TEXT}, additionalProperties=TEXT) == "t(*, more: str = ..., **more2: str)"
    assert signature({}, additionalProperties=False) == "t()"


def test_arguments_that_are_no_names_are_renamed() -> None:
    keys = ["class", "$filter", "self", "a-b", "a_b", "a.b", "2x", "__proto__", "", "é"]
    source = rendered(tool("t", "", {"properties": dict.fromkeys(keys, TEXT)})).files["crm/t.py"]
    namespace = run(source)
    assert namespace["marks"][:2] == ("crm", "t")
    names = namespace["marks"][2]
    assert sorted([*names.values(), "self", "a_b"]) == sorted(keys)
    assert {
        "class_": "class",
        "filter": "$filter",
        "_2x": "2x",
        "proto": "__proto__",
        "e": "é",
    }.items() <= names.items()


def test_a_type_may_contain_itself() -> None:
    for node in (NODE, ODD_NODE):
        schema = {"$defs": {"Node": node}, "type": "object", "properties": {"root": {"$ref": "#/$defs/Node"}}}
        namespace = run(rendered(tool("t", "", schema, schema)).files["crm/t.py"])
        assert "Node" in namespace


def run(source: str) -> dict[str, Any]:
    """What importing a file makes, with the arguments of its decorator as `marks`."""
    found: dict[str, Any] = {"__name__": "stub"}
    module = types.ModuleType("kernelmcp_guest.servers")

    def decorator(*marks: Any) -> Callable[[Any], Any]:
        found["marks"] = marks
        return lambda function: function

    module.__dict__.update(tool=decorator, Text=str, Blob=bytes)
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, "stub", "exec"), found)
    finally:
        del sys.modules[module.__name__]
        if before is not None:
            sys.modules[module.__name__] = before
    return found


@pytest.mark.parametrize("schema", REF_LOOPS + HUGE + ODD, ids=range(len(REF_LOOPS + HUGE + ODD)))
def test_whatever_a_schema_says_the_file_can_be_imported(schema: Any) -> None:
    assert callable(run(rendered(tool("t", "", schema, schema)).files["crm/t.py"])["t"])


def test_whatever_a_tool_is_called_the_file_can_be_imported() -> None:
    for path, source in rendered(*(tool(name) for name in NAMES)).files.items():
        if path.endswith(".py") and "__init__" not in path:
            assert callable(run(source)[path.removeprefix("crm/").removesuffix(".py")])


def test_what_an_annotation_has_no_place_for_is_in_the_docstring() -> None:
    arguments = {
        "a": {"type": "integer", "minimum": 1, "maximum": 500, "description": "How many."},
        "b": {"enum": [f"v{i}" for i in range(1000)]},
        "c": {**TEXT, "format": "date-time"},
    }
    source = rendered(tool("t", "Does it.", {"properties": arguments})).files["crm/t.py"]
    said = ["Does it.", "", "a: How many; 1 to 500", "b: one of 1,000: v0, v1, v2, v3, v4, ...", "c: date-time"]
    assert ast.get_docstring(ast.parse(source).body[-1]) == "\n".join(said)  # pyright: ignore[reportArgumentType]


def test_denied_tools_have_no_file() -> None:
    catalogue = Catalogue("crm", "", "", "", (tool("a"), tool("b")))
    found = render([catalogue], lambda server, each: (server, each.name) != ("crm", "b"))
    assert set(found.files) == {"index.json", "crm/__init__.py", "crm/a.py"}
    assert "b(" not in "".join(found.files.values())


def test_the_catalogue_says_who_says_it() -> None:
    found = rendered(tool("a", "First. Second."), title="Acme", version="2", instructions="Be nice.")
    assert found.files["crm/__init__.py"] == (
        '"""Tools of the MCP server \'crm\' (Acme 2), which says of itself:\n\nBe nice.\n\na()  # First. Second.\n"""\n'
    )


def test_a_sentence_that_all_descriptions_begin_with_is_left_out_of_lists() -> None:
    found = rendered(
        *(tool(f"t{i}", f"Part of the API of X{i}. Does {i}.") for i in range(9)), tool("u", "Other. More.")
    )
    assert "t3()  # Does 3." in found.files["crm/__init__.py"]
    assert "u()  # Other. More." in found.files["crm/__init__.py"]
    assert "Part of the API of X3." in found.files["crm/t3.py"]


RECORD = {
    "type": "object",
    "title": "Record",
    "properties": {
        "id": TEXT,
        "name": {**TEXT, "description": "Display name of the record, as shown in lists. At most 255 characters."},
        "owner": {**TEXT, "description": "Id of the user who is responsible. Use list_users to find ids."},
        "status": {"enum": ["new", "open", "pending", "won", "lost"], "description": "Stage of its life cycle."},
        "amount": {"type": "number", "description": "Monetary amount in the account's currency."},
    },
    "required": ["id", "name"],
}


def many(count: int) -> Catalogue:
    about = "Part of the API of the CRM. Create a new {} and return the stored record with its id. Search first."
    tools = (
        Tool(f"create_{i}", None, about.format(i), {**RECORD, "title": ""}, RECORD, False, False, None, "")
        for i in range(count)
    )
    return Catalogue("crm", "Acme", "1.0", "Customer records.", tuple(tools))


def test_files_cost_few_tokens() -> None:
    files = render([many(60)], lambda server, each: True).files
    assert 90 <= len(files["crm/create_7.py"]) // 4 <= 290
    assert 200 <= len(files["crm/__init__.py"]) // 4 <= 1300


def test_a_thousand_tools_take_moments() -> None:
    began = time.process_time()
    found = render([many(1000)], lambda server, each: True)
    assert time.process_time() - began < 10  # it takes half a second
    assert len(found.files) == 1002


def test_the_digest_is_of_the_content() -> None:
    one, same, other = rendered(tool("a", "x")), rendered(tool("a", "x")), rendered(tool("a", "y"))
    assert one == same
    assert one.digest != other.digest
    assert json.loads(one.files["index.json"])["servers"] != json.loads(other.files["index.json"])["servers"]
    # An argument that no list shows: the index is another file all the same, which tells a guest.
    wide, narrow = (rendered(tool("a", "", {"properties": {"b": part}})) for part in (TEXT, True))
    assert wide.files["index.json"] != narrow.files["index.json"]


def test_a_denied_tool_has_only_its_name_in_the_index() -> None:
    crm = Catalogue("crm", "", "", "", (tool("get-deal"), tool("get_deal"), tool("wipe all")))
    found = render([crm], lambda server, each: each.name == "get_deal")
    assert set(found.files) == {"index.json", "crm/__init__.py", "crm/get_deal.py"}
    content = json.loads(found.files["index.json"])["servers"]["crm"]
    assert list(content["tools"]) == ["get_deal"]
    assert content["denied"] == {"wipe_all": "wipe all"}


# -- the folder -------------------------------------------------------------------------------------------------------


def test_published_files_are_read_only_and_complete(tmp_path: Path) -> None:
    found = render([many(3)], lambda server, each: True, {"loud": "x = 1\n"})
    folder = publish(found, tmp_path / "offers")
    assert folder.name == found.digest
    files = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert files == found.files
    assert files["skills/loud.py"] == "x = 1\n"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}
    assert modes == {0o444}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "crm")} == {0o555}


def test_publishing_again_writes_nothing(tmp_path: Path) -> None:
    found = rendered(tool("a"))
    first = publish(found, tmp_path)
    before = (first / "crm" / "a.py").stat()
    assert publish(found, tmp_path) == first
    assert (first / "crm" / "a.py").stat() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [found.digest]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rendered(tool("a"))
    bad = Rendered({**found.files, "crm/a.py/b.py": ""}, "bad")
    with pytest.raises(OSError):  # noqa: PT011  # whatever the system calls it
        publish(bad, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_old_folders_are_deleted_and_those_in_use_are_not(tmp_path: Path) -> None:
    old, used, new = (publish(rendered(tool(name)), tmp_path) for name in "abc")
    for folder in (old, used):
        past = time.time() - KEPT_SECONDS - 60
        os.utime(folder, (past, past))
    unfinished = tmp_path / ".new-0123"
    unfinished.mkdir()
    os.utime(unfinished, (0, 0))
    (tmp_path / ".new-4567").mkdir()
    assert publish(rendered(tool("b")), tmp_path) == used
    assert {entry.name for entry in tmp_path.iterdir()} == {used.name, new.name, ".new-4567"}


def test_tools_that_change_all_the_time_do_not_fill_the_disk(tmp_path: Path) -> None:
    for number in range(3 * MAX_KEPT):
        taken = publish(rendered(tool(f"t{number}")), tmp_path)
        past = time.time() - TAKEN_SECONDS - number
        os.utime(taken, (past, past))
    assert len(list(tmp_path.iterdir())) <= MAX_KEPT + 1
