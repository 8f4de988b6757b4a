"""The real server of the other tests, and worlds without one."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from ..server.conftest import *  # noqa: F403  # its fixtures
from .fakes import World
from .support import Answer, Model, modelling, settings_of

Modelling = Callable[..., AbstractAsyncContextManager[Model]]


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    def make(**settings: object) -> World:
        return World(tmp_path, **settings)

    return make


@pytest.fixture
def model(server_env: dict[str, str], tmp_path: Path) -> Modelling:
    """`async with model(lambda prompt: chose("once"), toml=settings_of(crm="")) as one`; the upstream is ready."""

    @asynccontextmanager
    async def connect(
        answer: Answer | None = None, toml: str | None = None, mode: str = "legacy", **settings: str
    ) -> AsyncIterator[Model]:
        text = settings_of(crm="") if toml is None else toml
        async with modelling(server_env, text, tmp_path, answer, mode, **settings) as one:
            if "[upstreams.servers.crm]" in text:
                await one.ready()
            yield one

    return connect
