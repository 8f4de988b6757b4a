"""Converts a JSON schema to an annotation and its TypedDicts. Inexpressible parts become `Any`.

A schema may be hostile: infinite through its references, deep, or huge. Steps, depth, classes and lengths are limited,
and parts beyond the limits become `Any` too.
"""

import re
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any, cast

from kernelmcp.output.sanitize import as_dict, as_list
from kernelmcp.upstreams.stubs.identifiers import identifier
from kernelmcp.upstreams.stubs.untrusted_text import literal, sentence

Schema = Mapping[str, Any]

MAX_STEPS = 2_000
MAX_DEPTH = 12
MAX_CLASSES = 40
MAX_FIELDS = 200
MAX_ALTERNATIVES = 12
MAX_LITERALS = 24
MAX_LITERAL_CHARS = 600
MAX_FIELD_DOC_CHARS = 80
# References repeat a text without a step for each part of it: a longer annotation becomes `Any`.
MAX_ANNOTATION_CHARS = 2_000
# Names that a stub imports; no class of a schema may have such a name.
IMPORTED = ("Any", "Blob", "Literal", "NotRequired", "Text", "TypedDict")

_SIMPLE = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict[str, Any]",
    "array": "list[Any]",
}
_KEYS = (
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "default",
    "description",
    "enum",
    "items",
    "oneOf",
    "prefixItems",
    "properties",
    "required",
    "title",
    "type",
)
_WORD = re.compile(r"[A-Za-z0-9]+")


def _known(schema: Schema) -> dict[str, Any]:
    """A copy of the keywords that are used here."""
    return {key: schema[key] for key in _KEYS if key in schema}


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


class Classes:
    """The TypedDicts of one tool, in the order of their definitions."""

    def __init__(self, reserved: Collection[str]) -> None:
        self.sources: list[str] = []
        self.said: set[str] = set()
        """Descriptions that the reader has already seen, such as those of the arguments."""
        self.functional = 0
        """Number of them that are calls of `TypedDict`, for keys that are no identifiers."""
        self._taken = {*IMPORTED, *reserved}
        self._open: set[str] = set()

    @property
    def full(self) -> bool:
        return len(self.sources) + len(self._open) >= MAX_CLASSES

    def begin(self, wanted: str) -> str:
        """Return a name for a class whose fields are converted next, and may mention it."""
        words = "".join(word[:1].upper() + word[1:] for word in _WORD.findall(wanted[:120]))
        base = identifier(words or "Value", self._taken)[:60]
        name, number = base, 2
        while name in self._taken:
            name, number = f"{base}{number}", number + 1
        self._taken.add(name)
        self._open.add(name)
        return name

    def end(self, name: str, fields: list[tuple[str, str, bool, str]]) -> None:
        """Define the class. Each field has a key, an annotation, whether it is required, and a description."""
        if all(identifier(key) == key for key, *_ in fields):
            self.sources.append(
                "\n".join([f"class {name}(TypedDict):", *(self._field(*field) for field in fields)] if fields else [])
            )
        else:
            parts = (f"{literal(key)}: {self._type(text, required)}" for key, text, required, _ in fields)
            self.sources.append(f"{name} = TypedDict({literal(name)}, {{{', '.join(parts)}}})")
            self.functional += 1
        self._open.discard(name)

    def _field(self, key: str, text: str, required: bool, doc: str) -> str:
        return f"    {key}: {self._type(text, required)}{f'  # {doc}' if doc and doc not in self.said else ''}"

    def _type(self, text: str, required: bool) -> str:
        # The class is not defined yet, so the whole annotation is a string.
        if self._open & set(re.findall(r"\w+", text)):
            text = literal(text)
        return text if required else f"NotRequired[{text}]"


class Annotations:
    """The annotations of one schema."""

    def __init__(self, root: Schema, classes: Classes) -> None:
        self._root = root
        self._classes = classes
        self._steps = 0
        self._by_reference: dict[str, str] = {}

    def of(self, schema: object, name: str, depth: int = 0) -> str:
        """The annotation of a schema. `name` is the name of a class for it, unless the schema has a title."""
        text = self._of(schema, name, depth)
        return text if len(text) <= MAX_ANNOTATION_CHARS else "Any"

    def _of(self, schema: object, name: str, depth: int) -> str:
        self._steps += 1
        if not isinstance(schema, dict) or depth > MAX_DEPTH or self._steps > MAX_STEPS:
            return "Any"
        found = cast("Schema", schema)
        if isinstance(reference := found.get("$ref"), str):
            return self._referenced(reference, depth)
        if "const" in found:
            return self._literals([found["const"]], found)
        if isinstance(found.get("enum"), list):
            return self._literals(found["enum"], found)
        for key in ("anyOf", "oneOf"):
            if isinstance(found.get(key), list):
                parts = as_list(found[key])[: MAX_ALTERNATIVES + 1]
                return self._union([self.of(part, name, depth + 1) for part in parts])
        if as_list(found.get("allOf")):
            return self.of(dict(self.merged(found)), name, depth + 1)
        kind = found.get("type")
        if isinstance(kind, list):
            kinds = as_list(kind)[: MAX_ALTERNATIVES + 1]
            return self._union([self._typed({**_known(found), "type": one}, name, depth) for one in kinds])
        return self._typed(found, name, depth)

    def merged(self, schema: Schema, depth: int = 0) -> Schema:
        """Follow references and merge the parts of `allOf`, as far as objects go."""
        self._steps += 1
        if depth > MAX_DEPTH or self._steps > MAX_STEPS:
            return {}
        schema = _known(schema)
        parts = [
            self.merged(as_dict(part), depth + 1) for part in as_list(schema.pop("allOf", None))[:MAX_ALTERNATIVES]
        ]
        if isinstance(reference := schema.pop("$ref", None), str):
            parts.append(self.merged(self._resolve(reference), depth + 1))
        if not parts:
            return schema
        properties: dict[str, Any] = {}
        required: list[Any] = []
        whole: dict[str, Any] = {}
        for part in [*parts, schema]:
            whole |= part
            properties |= dict(islice(as_dict(part.get("properties")).items(), MAX_FIELDS))
            required += as_list(part.get("required"))[:MAX_FIELDS]
        return {**whole, **({"properties": properties, "required": required} if properties else {})}

    def _typed(self, schema: Schema, name: str, depth: int) -> str:
        kind = text_of(schema.get("type"))
        if kind == "array" or (not kind and "items" in schema):
            return self._array(schema, name, depth)
        if kind == "object" or (not kind and "properties" in schema):
            return self._object(schema, name, depth)
        return _SIMPLE.get(kind, "Any")

    def _array(self, schema: Schema, name: str, depth: int) -> str:
        one = name[:-1] if name.endswith("s") and len(name) > 2 else f"{name}_item"
        items = schema.get("items")
        first: object = schema.get("prefixItems", cast("object", items) if isinstance(items, list) else None)
        parts = [self.of(part, one, depth + 1) for part in as_list(first)[:MAX_ALTERNATIVES]]
        if isinstance(items, dict):
            parts.append(self.of(cast("object", items), one, depth + 1))
        return f"list[{self._union(parts)}]" if parts else "list[Any]"

    def _object(self, schema: Schema, name: str, depth: int) -> str:
        properties = as_dict(schema.get("properties"))
        if properties and len(properties) <= MAX_FIELDS and not self._classes.full:
            title = self._classes.begin(text_of(schema.get("title")) or name)
            self._fill(title, schema, depth)
            return title
        values = schema.get("additionalProperties")
        if isinstance(values, dict) and not properties:
            return f"dict[str, {self.of(cast('object', values), f'{name}_value', depth + 1)}]"
        return _SIMPLE["object"]

    def _fill(self, title: str, schema: Schema, depth: int) -> None:
        required = {key for key in as_list(schema.get("required"))[: 4 * MAX_FIELDS] if isinstance(key, str)}
        fields = [
            (key, self.of(part, key, depth + 1), key in required, field_doc(part))
            for key, part in as_dict(schema.get("properties")).items()
        ]
        self._classes.end(title, fields)

    def _referenced(self, reference: str, depth: int) -> str:
        if reference in self._by_reference:
            return self._by_reference[reference]
        self._by_reference[reference] = "Any"  # it refers only to itself
        target = self._resolve(reference)
        merged = self.merged(target) if "allOf" in target else target
        name = reference.rpartition("/")[2]
        properties = as_dict(merged.get("properties"))
        is_class = merged.get("type", "object") == "object" and 0 < len(properties) <= MAX_FIELDS
        if not is_class or self._classes.full or depth > MAX_DEPTH:
            found = self.of(cast("object", merged), name, depth + 1) if merged else "Any"
            self._by_reference[reference] = found
            return found
        title = self._classes.begin(text_of(merged.get("title")) or name)
        self._by_reference[reference] = title  # its fields may refer to it
        self._fill(title, merged, depth + 1)
        return title

    def _resolve(self, reference: str) -> Schema:
        """Resolve a reference within the schema; an empty schema if there is no such target."""
        if not reference.startswith("#") or len(reference) > 500:
            return {}
        node: Schema = self._root
        for part in filter(None, reference[1:].split("/")):
            node = as_dict(node.get(part.replace("~1", "/").replace("~0", "~")))
        return node

    def _literals(self, values: list[Any], schema: Schema) -> str:
        """All of the values if they are few, otherwise their types."""
        found = values[: MAX_LITERALS + 1]
        if not found or not all(value is None or isinstance(value, (str, int, bool)) for value in found):
            return self._typed({"type": schema.get("type")}, "", MAX_DEPTH)
        shown = [literal(value) for value in found if value is not None]
        text = f"Literal[{', '.join(dict.fromkeys(shown))}]" if shown else ""
        if len(found) > MAX_LITERALS or len(text) > MAX_LITERAL_CHARS or "..." in shown:
            text = " | ".join(dict.fromkeys(type(value).__name__ for value in found if value is not None))
        return " | ".join(filter(None, [text, "None" if None in found else ""]))

    def _union(self, parts: list[str]) -> str:
        found = dict.fromkeys(alternative for part in parts for alternative in _alternatives(part))
        if "Any" in found or not found or len(parts) > MAX_ALTERNATIVES:
            return "Any"
        return " | ".join(sorted(found, key=lambda part: part == "None"))


def _alternatives(text: str) -> list[str]:
    """The parts of a union, if it consists of plain names."""
    return text.split(" | ") if "[" not in text else [text]


def field_doc(schema: object) -> str:
    """The description of a key of a TypedDict."""
    return sentence(as_dict(schema).get("description"), MAX_FIELD_DOC_CHARS)
