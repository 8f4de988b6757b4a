"""A tool's arguments as parameters of a Python function, and their descriptions in the docstring.

Required ones come first and may be positional; the rest are keyword-only. `...` is a value that is not sent; a default
that is shown is the server's, and is not sent either.
"""

from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

from kernelmcp.output.sanitize import as_dict, as_list
from kernelmcp.upstreams.stubs.annotations import Annotations, Schema
from kernelmcp.upstreams.stubs.identifiers import identifiers
from kernelmcp.upstreams.stubs.untrusted_text import literal, one_line

MAX_PARAMETERS = 100
MAX_KEY_CHARS = 250
MAX_DOC_CHARS = 240
MAX_DEFAULT_CHARS = 40
# Parameters in a line of a list or a search.
MAX_BRIEF = 4
_EXAMPLES = 5


@dataclass(frozen=True)
class Parameter:
    name: str
    key: str
    """Its name for the server."""
    annotation: str
    required: bool
    default: str
    doc: str


@dataclass(frozen=True)
class Parameters:
    listed: list[Parameter] = field(default_factory=list[Parameter])
    more: str | None = None
    """The annotation of additional arguments; None if there are none."""

    @property
    def text(self) -> str:
        required = [f"{each.name}: {each.annotation}" for each in self.listed if each.required]
        others = [f"{each.name}: {each.annotation} = {each.default}" for each in self.listed if not each.required]
        more = [f"**{self.rest}: {self.more}"] if self.more else []
        return f"({', '.join([*required, *(['*'] if others else []), *others, *more])})"

    @property
    def rest(self) -> str:
        """A name for the additional arguments that differs from all others."""
        taken = {each.name for each in self.listed}
        return next(name for name in ("more", *(f"more{i}" for i in range(2, MAX_PARAMETERS + 3))) if name not in taken)

    @property
    def renamed(self) -> dict[str, str]:
        return {each.name: each.key for each in self.listed if each.name != each.key}

    @property
    def brief(self) -> str:
        """`(id, limit=..., ...)`"""
        shown = [each.name if each.required else f"{each.name}=..." for each in self.listed]
        required = sum(each.required for each in self.listed)
        few = max(required, MAX_BRIEF)
        return f"({', '.join([*shown[:few], *(['...'] if len(shown) > few or self.more else [])])})"


def parameters(schema: Schema, annotations: Annotations) -> Parameters:
    whole = annotations.merged(schema) if "allOf" in schema or "$ref" in schema else schema
    properties = as_dict(whole.get("properties"))
    required = {key for key in as_list(whole.get("required"))[: 4 * MAX_PARAMETERS] if isinstance(key, str)}
    known = [key for key in islice(properties, 20 * MAX_PARAMETERS) if len(key) <= MAX_KEY_CHARS]
    keys = [*(key for key in known if key in required), *(key for key in known if key not in required)]
    names = identifiers(keys[:MAX_PARAMETERS])
    found = [
        _parameter(names[key], key, properties[key], key in required, annotations) for key in keys[:MAX_PARAMETERS]
    ]
    besides: object = whole.get("additionalProperties")
    more = "Any" if besides is True or len(properties) > min(len(known), MAX_PARAMETERS) else None
    if isinstance(besides, dict):
        more = annotations.of(cast("object", besides), "more")
    return Parameters(found, more)


def _parameter(name: str, key: str, schema: object, required: bool, annotations: Annotations) -> Parameter:
    annotation = annotations.of(schema, key)
    part = as_dict(schema)
    notes = [] if name == key else [f"sent as {literal(one_line(key, MAX_DEFAULT_CHARS))}"]
    doc = one_line(part.get("description"), MAX_DOC_CHARS)
    text = "; ".join(
        [
            *filter(None, [doc.rstrip(".") if notes or _facts(part, annotation) else doc]),
            *notes,
            *_facts(part, annotation),
        ]
    )
    return Parameter(name, key, annotation, required, _default(part), text)


def _default(schema: Schema) -> str:
    value: object = schema.get("default", ...)
    if value is not None and not isinstance(value, (bool, int, float, str)):
        return "..."
    if isinstance(value, str) and len(value) > MAX_DEFAULT_CHARS:
        return "..."
    return literal(value)


def _facts(schema: Schema, annotation: str) -> list[str]:
    """Facts that the annotation cannot express."""
    found: list[str] = []
    values = [value for value in as_list(schema.get("enum"))[:_EXAMPLES] if isinstance(value, (str, int, float))]
    if values and "Literal" not in annotation:
        shown = ", ".join(one_line(value, 40) if isinstance(value, str) else literal(value) for value in values)
        found.append(f"one of {len(schema['enum']):,}: {shown}, ...")
    low, high = (_number(schema.get(key)) for key in ("minimum", "maximum"))
    if low or high:
        found.append(f"{low} to {high}" if low and high else f"at least {low}" if low else f"at most {high}")
    if isinstance(form := schema.get("format"), str) and annotation.startswith("str"):
        found.append(one_line(form, 30))
    return found


def _number(value: Any) -> str:
    return "" if isinstance(value, bool) or not isinstance(value, (int, float)) else literal(value).replace("...", "")
