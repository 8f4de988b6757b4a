"""The watch over all sessions goes on whatever one of them has."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from traitlets import TraitError

from kernelmcp.lab.descriptors import Descriptor
from kernelmcp.lab.names import Names
from kernelmcp.lab.open_questions import Questions
from kernelmcp.lab.persons import Persons
from kernelmcp.lab.watch import DELETED, REPLACED, Watch, _Followed


class App:
    """As much of a Jupyter server as a look at the sessions needs."""

    log = logging.getLogger(__name__)
    kernel_manager: Any

    def __init__(self, folder: Path) -> None:
        self.root_dir = str(folder)
        self.kernel_manager = self
        file_ids = SimpleNamespace(get_id=lambda name: name)
        self.web_app = SimpleNamespace(settings={"file_id_manager": file_ids})
        documents = SimpleNamespace(ywebsocket_server=SimpleNamespace(rooms={}))
        self.extension_manager = SimpleNamespace(extension_apps={"jupyter_server_ydoc": [documents]})
        self.tried: list[str] = []

    def list_kernel_ids(self) -> list[str]:
        return []

    def attach(self, session: Descriptor, *, restarted: bool) -> Any:
        self.tried.append(session.session_id)
        raise (TraitError if session.session_id == "odd" else FileNotFoundError)("its connection file")

    def detach(self, kernel_id: str) -> None:
        pass


class Found:
    def __init__(self, *names: str) -> None:
        self.names = names

    left_out: ClassVar[list[str]] = []

    def read(self) -> dict[str, Descriptor]:
        return {
            name: Descriptor(name, name, "", "python", Path(), Path("control.sock"), Path("k.json"))
            for name in self.names
        }


def test_a_session_that_cannot_be_shown_keeps_no_other_from_being_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, found = App(tmp_path), Found("odd", "other")
    descriptors: Any = found

    async def run() -> None:
        questions = Questions()
        names, persons = Names(tmp_path / "names.json", tmp_path), Persons(tmp_path / "persons.json")
        watch = Watch(app, descriptors, names, persons, questions)
        for _ in range(3):
            await watch._look()
        questions.close()

    asyncio.run(run())
    assert app.tried == ["odd", "other", "other", "other"]
    assert caplog.text.count("session 'odd' cannot be shown") == 1
    assert (tmp_path / "other.ipynb").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"connection_file": Path("other.json")}, REPLACED),
        ({"connection_file": Path("other.json"), "created_at": "2026-01-02"}, DELETED),
        ({"connection_file": None, "created_at": "2026-01-02"}, DELETED),
    ],
)
def test_a_notebook_says_whether_its_session_is_the_same_one_still(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    said: list[str] = []

    class Follower:
        async def end(self, words: str, key: str) -> None:
            said.append(words)

    async def run() -> None:
        app: Any = App(tmp_path)
        questions = Questions()
        names, persons = Names(tmp_path / "names.json", tmp_path), Persons(tmp_path / "persons.json")
        watch = Watch(app, Found(), names, persons, questions)  # type: ignore[arg-type]
        old = Descriptor("k", "s", "2026-01-01", "python", tmp_path, tmp_path / "control.sock", Path("k.json"))
        one = _Followed(old, Follower())  # type: ignore[arg-type]
        one.task = asyncio.create_task(asyncio.sleep(0))
        watch._followed["k"] = one
        one.gone_since = 1e-9  # long ago
        await watch._let_go("k", one, replace(old, **change))
        questions.close()

    asyncio.run(run())
    assert said == [words]
