"""Lab's notebooks are replaced, not written into: who reads one meanwhile, or a kill, finds the one before."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pytest
from tornado import web
from traitlets.config import LoggingConfigurable

from kernelmcp.atomic import replace, sweep_drafts
from kernelmcp.lab.handlers import WATCH
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


@pytest.mark.parametrize("stem", [255 * "x", 82 * "漢" + 9 * "x"], ids=["ascii", "wide"])
def test_a_file_with_the_longest_name_is_saved_and_its_drafts_are_deleted(tmp_path: Path, stem: str) -> None:
    manager = contents.Contents(root_dir=str(tmp_path))
    files = [tmp_path / f"{stem[:-5]}{end}.txt" for end in "ab"]
    assert [len(file.name.encode()) for file in files] == [255, 255]
    for file in files:

        def killed(out: BinaryIO) -> None:
            [draft] = tmp_path.glob(".*")
            draft.rename(tmp_path / "left")
            raise KeyboardInterrupt(draft.name)

        with pytest.raises(KeyboardInterrupt) as left:
            replace(file, killed)
        (tmp_path / "left").rename(tmp_path / str(left.value))
        with manager.atomic_writing(str(file)) as stream:
            stream.write(file.stem[-1])
    assert {file: file.read_text() for file in tmp_path.iterdir()} == dict(zip(files, "ab", strict=True))


def test_a_file_with_a_long_name_deletes_no_draft_of_another(tmp_path: Path) -> None:
    first, second = (tmp_path / (254 * "x" + end) for end in "ab")
    replace(first, lambda _: sweep_drafts(second))
    assert os.listdir(tmp_path) == [first.name]


def record(folder: Path, *open_sessions: str) -> contents.Contents:
    """Files of a Lab with the notebook a.ipynb of a session, which is open if it is named."""
    metadata = {"trusted": False, "editable": False, "deletable": False, "kernelmcp": {"execution_id": "1"}}
    cell = {"cell_type": "code", "execution_count": None, "id": "k1", "metadata": metadata, "outputs": [], "source": ""}
    (folder / "a.ipynb").write_text(json.dumps(BEFORE | {"cells": [cell]}))
    names = SimpleNamespace(kernel_of=lambda path: {"a.ipynb": "a"}.get(path))
    watch = SimpleNamespace(names=names, record_at=lambda path: path if path in open_sessions else None)
    app = LoggingConfigurable()
    vars(app)["web_app"] = SimpleNamespace(settings={WATCH: watch})
    return contents.Contents(parent=app, root_dir=str(folder))


async def test_the_cells_of_a_copy_are_a_persons_own(tmp_path: Path) -> None:
    manager = record(tmp_path)
    copied = await manager.copy("a.ipynb")
    content = (await manager.get("a.ipynb"))["content"]
    await manager.save({"type": "notebook", "content": content}, "saved_as.ipynb")
    downloaded = json.loads(await manager.unlocked("a.ipynb") or "")
    edited = await manager.get("a.ipynb", type="file", format="text")  # by Lab's text editor, which may save it
    assert edited["content"] == (tmp_path / "a.ipynb").read_text()
    for notebook in (
        json.loads((tmp_path / copied["path"].strip("/")).read_text()),
        json.loads((tmp_path / "saved_as.ipynb").read_text()),
        downloaded,
    ):
        assert not notebook["cells"][0]["metadata"].keys() & {"editable", "deletable", "kernelmcp"}


async def test_the_cells_of_a_record_are_saved_as_they_are(tmp_path: Path) -> None:
    manager = record(tmp_path)
    before = json.loads((tmp_path / "a.ipynb").read_text())
    await manager.save({"type": "notebook", "content": (await manager.get("a.ipynb"))["content"]}, "a.ipynb")
    saved = json.loads((tmp_path / "a.ipynb").read_text())["cells"][0]["metadata"]
    assert before["cells"][0]["metadata"].items() >= saved.items() >= {"editable": False, "deletable": False}.items()
    assert (await manager.get("a.ipynb"))["content"]["cells"][0]["metadata"]["kernelmcp"]


async def test_a_refused_name_is_no_name_that_is_taken(tmp_path: Path) -> None:
    """At 409 Lab says that the new name exists, and offers to overwrite it."""
    manager = record(tmp_path, "a.ipynb")
    with pytest.raises(web.HTTPError, match="keeps its name") as refused:
        await manager.rename_file("a.ipynb", "b.ipynb")
    assert refused.value.status_code == 403


@pytest.mark.parametrize("chunk", [{}, {"chunk": 1}, {"chunk": -1}], ids=["whole", "first", "last"])
async def test_an_upload_replaces_no_record_of_an_open_session(tmp_path: Path, chunk: dict[str, int]) -> None:
    manager = record(tmp_path, "a.ipynb")
    before = (tmp_path / "a.ipynb").read_bytes()
    upload = {"type": "file", "format": "text", "content": json.dumps(BEFORE)} | chunk
    with pytest.raises(web.HTTPError, match="keeps its name") as refused:
        await manager.save(upload, "a.ipynb")
    assert refused.value.status_code == 403
    assert (tmp_path / "a.ipynb").read_bytes() == before
    await manager.save(upload, "b.ipynb")


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(BEFORE | {"metadata": {"kernelspec": {"name": "kernelmcp"}}}),
        json.dumps(BEFORE | {"cells": [{"cell_type": "markdown", "metadata": {}, "source": "kernelmcp \ud83d"}]}),
        json.dumps(BEFORE | {"cells": [{"metadata": {"kernelmcp": {}}, "source": "\ud83d"}]}),
        '{"kernelmcp',
        "[" * 50_000 + "kernelmcp",
    ],
    ids=["unlocked", "surrogate", "locked surrogate", "damaged", "deep"],
)
async def test_other_notebooks_are_downloaded_as_they_are(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.ipynb").write_text(text)
    assert await contents.Contents(root_dir=str(tmp_path)).unlocked("a.ipynb") is None


async def test_a_notebook_without_a_sessions_cells_is_not_parsed_for_a_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.ipynb").write_text(json.dumps(BEFORE))
    monkeypatch.setattr(contents.json, "loads", pytest.fail)
    assert await contents.Contents(root_dir=str(tmp_path)).unlocked("a.ipynb") is None


async def test_saved_widgets_of_a_notebook_are_kept_as_they_are(tmp_path: Path) -> None:
    widget = {"model_name": "TextareaModel", "state": {"value": "if a<b and c>d: print(1)", "labels": ["<b>c", "d"]}}
    saved = {"application/vnd.jupyter.widget-state+json": {"version_major": 2, "state": {"a": widget}}}
    (tmp_path / "a.ipynb").write_text(json.dumps(BEFORE | {"metadata": {"widgets": saved}}))
    manager = contents.Contents(root_dir=str(tmp_path))
    copied = await manager.copy("a.ipynb")
    await manager.save({"type": "notebook", "content": (await manager.get("a.ipynb"))["content"]}, "a.ipynb")
    for name in ("a.ipynb", copied["path"].strip("/")):
        assert json.loads((tmp_path / name).read_text())["metadata"]["widgets"] == saved
