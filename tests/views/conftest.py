"""The real server of the other tests, for a client with views; one browser for the tests of a file."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from ..server.conftest import *  # noqa: F403  # its fixtures
from .rig import Tab, chromium, open_tab


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as found:
        yield found


@pytest.fixture(scope="module")
async def tab(browser: Browser) -> AsyncIterator[Tab]:
    async with open_tab(browser) as found:
        yield found
