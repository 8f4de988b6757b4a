"""A real server whose settings files change while it runs, and what it logs meanwhile."""

from pathlib import Path

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
