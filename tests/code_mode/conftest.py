"""The real server of the other tests, and worlds without one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..server.conftest import anyio_backend, connect, kernelspec, server_env  # noqa: F401  # fixtures
from .fakes import World


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    def make(**settings: Any) -> World:
        return World(tmp_path, **settings)

    return make
