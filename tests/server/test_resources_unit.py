"""Reading resources when the disk refuses: no client sees paths of the host."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, UnexpectedResourceError

from kernelmcp.errors import InvalidArgument, StorageFailed
from kernelmcp.mcp_server.resources import SESSIONS, Resources, ResourceServer
from kernelmcp.mcp_server.tools.file_tools import FileTools

from .fake_kernels import CALLER, opened, settings_of

pytestmark = pytest.mark.anyio
HOST = "/home/operator/.kernelmcp"


REFUSED = PermissionError(errno.EACCES, "Permission denied", HOST)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (REFUSED, UnexpectedResourceError, "Error reading resource kernelmcp://sessions"),
        (KeyError(HOST), UnexpectedResourceError, "Error reading resource kernelmcp://sessions"),
        (StorageFailed("no disk", "Tell the operator."), ResourceError, "no disk\n- Tell the operator."),
        (InvalidArgument("no session", "Look."), ResourceNotFoundError, "no session\n- Look."),
    ],
    ids=["of the system", "a bug", "ours", "the caller's"],
)
async def test_a_client_sees_no_error_of_the_disk_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], words: str
) -> None:
    settings = settings_of(tmp_path)
    async with opened(settings) as (registry, _):
        server: Any = ResourceServer("test")
        Resources(registry, lambda _: CALLER, cast("Any", None)).register(server)
        server.views = SimpleNamespace(read=lambda _: None)
        context: Any = Context(mcp_server=server)

        def refuse(*_: object) -> None:
            raise error

        monkeypatch.setattr(registry.stored, "records", refuse)
        with pytest.raises(ResourceError) as caught:
            await server.read_resource(SESSIONS, context)
        assert type(caught.value) is kind
        assert words in str(caught.value)
        assert HOST not in str(caught.value)
        # The tool logs it, and reports it as one of the disk, or of the server.
        with pytest.raises(type(error)):
            await FileTools(settings, registry, lambda _: CALLER, "").read_file(SESSIONS, context)
