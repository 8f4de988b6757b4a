"""[network] from the settings to a cell."""

from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from .support import Connect
from .test_network_unit import SECRET


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_TOKEN", SECRET)


@pytest.mark.anyio
async def test_a_session_reaches_what_the_settings_allow_and_nothing_else(connect: Connect, kernelspec: str) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("a native kernel has the network of its user")
    arrived: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            arrived.append(self.headers["Authorization"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as site:
        Thread(target=site.serve_forever, daemon=True).start()
        here = f"127.0.0.1:{site.server_port}"
        settings = {
            "NETWORK__ALLOW_HOSTS": f'["{here}"]',
            "NETWORK__HEADERS": f'{{"{here}" = {{Authorization = "Bearer ${{TEST_TOKEN}}"}}}}',
        }
        async with connect(**settings) as client:
            code = f"from urllib.request import urlopen\nprint(urlopen('http://{here}/').status)"
            ran = (await client.call_tool("execute_code", {"code": code})).structured_content
            assert ran is not None
            assert ran["stdout"] == "204\n", ran
            code = (
                "import os; print([k for k, v in os.environ.items() if 'c0ffee' in v])\nurlopen('http://example.org/')"
            )
            ran = (await client.call_tool("execute_code", {"code": code})).structured_content
            assert ran is not None
            assert ran["stdout"] == "[]\n"
            assert "example.org is not in [network] allow_hosts of mcp.toml" in ran["error"]["value"]
        site.shutdown()
    assert arrived == [f"Bearer {SECRET}"]
