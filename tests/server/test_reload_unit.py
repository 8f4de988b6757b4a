"""A real server whose settings files change while it runs, and what it logs meanwhile."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from kernelmcp.config.load import load
from kernelmcp.config.reload import keep_current

from .support import DEADLINE

pytestmark = pytest.mark.anyio


async def test_a_change_made_while_the_server_starts_is_not_missed(tmp_path: Path) -> None:
    """It comes after the settings were read and before the files are watched."""
    policy = tmp_path / "policy.toml"
    policy.write_text("output_budget_chars = 2000")
    settings = load(policy_file=policy)
    policy.write_text("output_budget_chars = 500")
    changed = anyio.Event()
    settings.on_change(changed.set)
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_current, settings, lambda _: None)
            await changed.wait()
            tasks.cancel_scope.cancel()
    assert settings.policy.output_budget_chars == 500


@pytest.mark.parametrize("folder", ["settings", ".venv"])
async def test_a_change_of_a_file_that_a_link_names_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    target, link = tmp_path / folder / "policy.toml", tmp_path / "links" / "policy.toml"
    for file in (target, link):
        file.parent.mkdir()
    target.write_text("output_budget_chars = 2000")
    link.symlink_to(target)
    settings = load(policy_file=link)
    watching, changed = anyio.Event(), anyio.Event()
    settings.on_change(changed.set)
    reload = settings.reload

    def reloaded(*arguments: Any) -> Any:
        watching.set()  # it reads them once when it begins to watch
        return reload(*arguments)

    monkeypatch.setattr(settings, "reload", reloaded)
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_current, settings, lambda _: None)
            await watching.wait()
            target.write_text("output_budget_chars = 500")
            await changed.wait()
            tasks.cancel_scope.cancel()
    assert settings.policy.output_budget_chars == 500
