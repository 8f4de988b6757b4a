"""When a session is saved."""

import asyncio
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from kernelmcp.cells.log import CellLog
from kernelmcp.notebook.transcript import MAX_NOTEBOOK_BYTES, Transcript
from kernelmcp.sessions.storage import saver as saver_module
from kernelmcp.sessions.storage.saver import Saver

pytestmark = pytest.mark.anyio


class Files:
    """The other files of a session."""

    def save_record(self) -> None:
        pass


class Grows(Transcript):
    """A transcript whose session ends another cell during each save."""

    def save(self) -> None:
        super().save()
        self._log.size += 1


def saver_of(folder: Path, tasks: Any, kind: type[Transcript] = Transcript) -> tuple[Saver, CellLog]:
    log = CellLog(folder / "notebook.jsonl")
    transcript = kind(folder / "notebook.ipynb", log)
    return Saver(tasks, folder, log, transcript, cast("Any", Files())), log


async def test_a_log_that_has_grown_large_is_saved_before_the_time_that_was_set(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        saver, log = saver_of(tmp_path, tasks)
        await saver.save()
        saver._took = 1000.0
        saver.save_soon()
        assert saver._timer is not None
        late = saver._timer.when()
        log.size = 3 * MAX_NOTEBOOK_BYTES
        saver.save_soon()
        assert saver._timer.when() < late - 1000
        saver.close()


async def test_cells_that_end_during_a_save_wait_no_longer_for_the_next_than_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver_module, "RETRY_SECONDS", 1e6)
    async with anyio.create_task_group() as tasks:
        saver, log = saver_of(tmp_path, tasks, Grows)
        log.size = 1
        await saver.save()
        assert saver._timer is not None
        assert saver._timer.when() < asyncio.get_running_loop().time() + 1e5
        saver.close()
