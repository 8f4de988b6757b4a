"""The quick check of a notebook's cells says what nbformat's own says, for every small damage of them."""

import copy
import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from nbformat import validator

from kernelmcp.cells.cell_format import is_valid_cell

METADATA = {
    "name": "n",
    "tags": ["a", "b"],
    "jupyter": {"source_hidden": True},
    "execution": {"iopub.execute_input": "2026-01-01"},
    "collapsed": True,
    "scrolled": "auto",
    "format": "text/x-rst",
    "kernelmcp": {"execution_id": "x"},
}
CODE = {"cell_type": "code", "id": "a-1_B", "metadata": METADATA, "source": "1", "execution_count": 1}
OUTPUTS = [
    {"output_type": "stream", "name": "stdout", "text": ["a", "b"]},
    {"output_type": "display_data", "data": {"text/plain": "x", "application/x+json": {}}, "metadata": {"a": {}}},
    {"output_type": "execute_result", "data": {"application/json": 1}, "metadata": {}, "execution_count": None},
    {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["a"]},
]
TEXT = {"cell_type": "markdown", "id": "b", "metadata": METADATA, "source": ["a", "b"]}
CELLS: list[dict[str, Any]] = [
    *(CODE | {"outputs": [output]} for output in OUTPUTS),
    TEXT | {"attachments": {"a.png": {"image/png": "x", "application/json": [1]}}},
    TEXT | {"cell_type": "raw"},
]
# Not 1.0: fastjsonschema takes it for an integer, as JSON Schema has done since draft 6; nbformat's is draft 4.
OTHERS: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    "",
    "a,b",
    "a\nb",
    "é" * 65,
    [],
    ["a", 1],
    ["a", "a"],
    {},
    {"a": 1},
    {"a": None},
]


def damaged(value: Any) -> Iterator[Any]:
    """The value with one thing in it replaced, removed or added."""
    yield from OTHERS
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        yield found | {"unknown": 1}
        for name, part in found.items():
            yield {key: other for key, other in found.items() if key != name}
            for other in damaged(part):
                yield found | {name: other}
    elif isinstance(value, list):
        parts = cast("list[Any]", value)
        yield parts * 2
        for number, part in enumerate(parts):
            for other in damaged(part):
                yield [*parts[:number], other, *parts[number + 1 :]]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: json.dumps(cell)[-40:])
def test_the_check_of_a_cell_says_what_nbformat_says(cell: dict[str, Any]) -> None:
    assert is_valid_cell(cell)
    whole = cast("Any", validator).get_validator(4, 5, name="jsonschema")
    seen = {True: 0, False: 0}
    for variant in damaged(cell):
        notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [copy.deepcopy(variant)]}
        wanted = next(whole.iter_errors(notebook), None) is None
        assert is_valid_cell(variant) is wanted, variant
        seen[wanted] += 1
    assert min(seen.values()) > 10


@pytest.mark.parametrize("kind", ["Code", "", None, [], {}])
def test_a_cell_of_no_known_kind_is_refused(kind: Any) -> None:
    assert not is_valid_cell(TEXT | {"cell_type": kind})
