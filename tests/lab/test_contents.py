"""Lab's notebooks are replaced, not written into: who reads one meanwhile, or a kill, finds the one before."""

import json
import os
from pathlib import Path

import pytest

from kernelmcp.lab.shared import contents

BEFORE = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
pytestmark = pytest.mark.anyio


async def test_a_reader_while_a_notebook_is_saved_finds_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "a.ipynb"
    file.write_text(json.dumps(BEFORE))
    manager = contents.Contents(root_dir=str(tmp_path))
    with manager.atomic_writing(str(file)) as stream:
        stream.write('{"cells": [')
        assert (await manager.get("a.ipynb"))["content"]["cells"] == []
        stream.write('], "metadata": {"new": true}, "nbformat": 4, "nbformat_minor": 5}')
    assert (await manager.get("a.ipynb"))["content"]["metadata"] == {"new": True}
    assert os.listdir(tmp_path) == ["a.ipynb"]


async def test_a_save_that_fails_leaves_the_notebook_before(tmp_path: Path) -> None:
    file = tmp_path / "a.ipynb"
    file.write_text(json.dumps(BEFORE))
    manager = contents.Contents(root_dir=str(tmp_path))
    with pytest.raises(TypeError), manager.atomic_writing(str(file)) as stream:
        json.dump({"cells": [object()]}, stream)
    assert json.loads(file.read_text()) == BEFORE
    assert os.listdir(tmp_path) == ["a.ipynb"]


async def test_a_notebook_and_a_file_are_saved(tmp_path: Path) -> None:
    manager = contents.Contents(root_dir=str(tmp_path))
    await manager.save({"type": "notebook", "content": BEFORE}, "a.ipynb")
    await manager.save({"type": "file", "format": "text", "content": "é\n"}, "a.txt")
    assert json.loads((tmp_path / "a.ipynb").read_text()) == BEFORE
    assert (tmp_path / "a.txt").read_bytes() == "é\n".encode()
