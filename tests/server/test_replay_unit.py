"""A notebook that runs in a session: from a workspace, a volume or a transcript, in order, until a cell fails."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kernelmcp.config.models import Values
from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument, PermissionDenied
from kernelmcp.mcp_server.notebook_sources import NotebookSources
from kernelmcp.notebook import code_cells as module
from kernelmcp.notebook.code_cells import CodeCell, code_cells
from tests.descriptors import open_below

pytestmark = pytest.mark.anyio


def notebook(*cells: str | dict[str, Any]) -> str:
    made = [{"cell_type": "code", "source": cell} if isinstance(cell, str) else cell for cell in cells]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": made})


async def test_what_is_no_file_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "shared" / "folder").mkdir(parents=True)
    values = Values.model_validate({"config": {"volumes": {"default_volume": tmp_path / "shared"}}})
    nobody: Any = None
    sources = NotebookSources(Settings(values), nobody)
    with pytest.raises(PermissionDenied, match="not a regular file"):
        await sources.read("/volumes/shared/folder", nobody, None)
    assert open_below(tmp_path) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "too large|not JSON"),
        (b"[]", "not a notebook of format 4"),
        (b'{"nbformat": 3, "worksheets": []}', "not a notebook of format 4"),
        (notebook().encode(), "no code cells"),
        (notebook(*["1"] * (module.MAX_CELLS + 1)).encode(), "split it"),
        (notebook("#" * (module.MAX_CODE_CHARS + 1)).encode(), "split it"),
        (b'{"a": [' + b"[]," * 20_000_000, "too large"),
    ],
    ids=range(9),
)
def test_what_is_no_notebook_is_refused_with_advice(data: bytes, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        code_cells(data, "'n.ipynb'")
    assert re.search(words, caught.value.to_text())
    assert caught.value.suggestions


def test_cells_of_any_shape() -> None:
    made: list[Any] = [
        {"cell_type": "code", "source": 5},
        {"cell_type": "code", "source": [1, "a\ud800"], "outputs": 3},
    ]
    made += [7, None, {"cell_type": ["code"]}, {"cell_type": "code", "source": "b", "metadata": {"tags": "x"}}]
    data = json.dumps({"nbformat": 4, "cells": made}).encode()
    assert [cell for cell in code_cells(data, "n") if cell.code.strip() == "b"] == [CodeCell("b", may_fail=False)]
