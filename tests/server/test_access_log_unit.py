"""The line that each request leaves in the log."""

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from structlog.testing import capture_logs

from kernelmcp.config.load import load
from kernelmcp.server import create_server


@pytest.mark.anyio
@pytest.mark.parametrize("below", ["", "/kernel"])
async def test_what_probes_ask_for_is_logged_for_debugging_only_wherever_the_server_is_mounted(below: str) -> None:
    app = Starlette(routes=[Mount(below, create_server(load(environ={})).http_app())])
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as http:
        with capture_logs() as lines:
            for path in ("/health", "/ready", "/nothing"):
                await http.get(below + path)
    assert [(line["path"], line["status"], line["log_level"]) for line in lines] == [
        (f"{below}/health", 200, "debug"),
        (f"{below}/ready", 503, "info"),  # it does not run
        (f"{below}/nothing", 404, "info"),
    ]
