"""Offers of tools that fail: made again before the next cell, and once for each."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from kernelmcp.config.models import OWN_KERNELSPEC
from kernelmcp.kernel.tool_channel import Offer
from kernelmcp.sessions.tools.offered_tools import OfferedTools

from .fake_kernels import FakeKernel, settings_of

pytestmark = pytest.mark.anyio
DEADLINE = 20


class OfferedKernel(FakeKernel):
    """Answers offers with what it is told, and from then on with success."""

    def __init__(self, *answers: str) -> None:
        super().__init__()
        self.launch = SimpleNamespace(kernelspec=OWN_KERNELSPEC)
        self.answers = list(answers)
        self.offers: list[Offer] = []

    def offer_tools(self, offer: Offer, _: object) -> asyncio.Future[dict[str, Any]]:
        self.offers.append(offer)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        answer.set_result({"content": {"status": self.answers.pop(0) if self.answers else "ok"}})
        return answer


class FakeSession:
    id, principal = "s", "local"

    def __init__(self, kernel: OfferedKernel) -> None:
        self.kernel = kernel


class Offers:
    """As `kernelmcp.code_mode.tool_offers.Offers`."""

    def __init__(self, *errors: OSError) -> None:
        self.errors = list(errors)

    async def of(self, _: str) -> Offer:
        if self.errors:
            raise self.errors.pop()
        return Offer("digest", Path("/offer"), ["crm"])


@pytest.mark.parametrize(
    ("kernel_answers", "errors", "made"),
    [((), (), 1), (("error",), (), 2), (("error", "error"), (), 3), ((), (OSError("the disk is full"),), 1)],
    ids=["accepted", "refused", "refused twice", "not published"],
)
async def test_an_offer_that_failed_is_made_again_before_the_next_cell(
    tmp_path: Path, kernel_answers: tuple[str, ...], errors: tuple[OSError, ...], made: int
) -> None:
    kernel = OfferedKernel(*kernel_answers)
    session, fake = cast("Any", FakeSession(kernel)), cast("Any", kernel)
    async with anyio.create_task_group() as tasks:
        offered = OfferedTools(settings_of(tmp_path), cast("Any", None), cast("Any", None), tasks)
        offered._is_opening = True  # pyright: ignore[reportPrivateUsage]
        offered.code_mode = cast("Any", SimpleNamespace(offers=Offers(*errors), broker=None))
        offered.kernel_changed(session)
        with anyio.fail_after(DEADLINE):
            for _ in range(4):  # cells
                await offered.before_cell(fake)
    assert len(kernel.offers) == made
