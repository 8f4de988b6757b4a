"""kernelmcp inside another program: mounted, started and ended by it, and its traces."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import anyio
import httpx2
import pytest
import uvicorn
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.routing import Mount

import kernelmcp
from kernelmcp import Settings, create_server
from kernelmcp.config.models import Config, Policy, Values
from kernelmcp.errors import ConfigurationError

from .http_support import run
from .support import DEADLINE, wait_until

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Collector(BaseHTTPRequestHandler):
    """An OpenTelemetry collector, as far as a sender sees one."""

    spans: ClassVar[list[Span]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def collector() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def settings(folder: Path, kernelspec: str, **sections: dict[str, Any]) -> Settings:
    server = {"home": str(folder / "home"), "runtime": f"/tmp/kmt-{os.getpid()}"}
    tools = {"structured_content": "always"}
    values = {"server": server, "kernels": {"kernelspec": kernelspec}, "tools": tools, **sections}
    return Settings(Values(config=Config.model_validate(values)))


class ByHeader(AuthenticationBackend):
    """The outer application knows who somebody is."""

    async def authenticate(self, conn: Any) -> tuple[AuthCredentials, SimpleUser] | None:
        name = conn.headers.get("x-user")
        if name == "nameless":
            return AuthCredentials(), SimpleUser("")
        return (AuthCredentials(), SimpleUser(name)) if name else None


@asynccontextmanager
async def client_of(app: Any, url: str, **headers: str) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app), headers=headers, timeout=DEADLINE) as http,
        Client(streamable_http_client(url, http_client=http), mode="auto") as client,
    ):
        yield client


@pytest.mark.anyio
async def test_mounted_in_another_application_with_its_users_and_traces(
    tmp_path: Path, kernelspec: str, collector: str
) -> None:
    server = create_server(
        settings(
            tmp_path,
            kernelspec,
            telemetry={"otlp_endpoint": collector},
            transport_http={"allowed_hosts": ["kernels.example.com"]},
        )
    )
    app = Starlette(
        routes=[Mount("/inside", server.http_app())],
        middleware=[Middleware(AuthenticationMiddleware, backend=ByHeader())],
        lifespan=server.lifespan,
    )
    url = "http://kernels.example.com/inside"
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as http:
        assert (await http.get(f"{url}/ready")).status_code == 503
        with anyio.fail_after(DEADLINE):
            async with app.router.lifespan_context(app):
                assert (await http.get(f"{url}/ready")).json() == {"ready": True}
                trace = f"00-{TRACE}-b7ad6b7169203331-01"
                async with client_of(app, f"{url}/mcp", **{"X-User": "alice", "traceparent": trace}) as alice:
                    session = (await run(alice, "x = 41"))["session_id"]
                    assert (await run(alice, "x + 1", session_id=session))["result"] == "42"
                async with client_of(app, f"{url}/mcp", **{"X-User": "bob"}) as bob:
                    listed = await bob.call_tool("get_sessions", {"session_id": session})
                    assert listed.is_error
                nameless = await http.post(f"{url}/mcp", headers={"X-User": "nameless"}, json={})
                assert nameless.status_code == 401, "users without a name would be one principal"
                assert (await http.post(f"{url}/mcp", json={})).status_code == 401, "the application knows nobody"
        assert (await http.get(f"{url}/ready")).status_code == 503
    # The HTTP header's trace goes on in the request's span, the MCP message's (the client sends one) in the call's.
    assert {span.name for span in Collector.spans if span.trace_id.hex() == TRACE} == {"POST"}
    parents = {span.span_id: span.name for span in Collector.spans}
    joined = {(span.name, parents.get(span.parent_span_id)) for span in Collector.spans}
    assert joined >= {("execution", "tools/call execute_code"), ("kernel", "execution")}
    kernel = next(span for span in Collector.spans if span.name == "kernel")
    client = next(span for span in Collector.spans if span.trace_id == kernel.trace_id and not span.parent_span_id)
    assert client.kind == Span.SPAN_KIND_CLIENT
    assert "x + 1" not in str(Collector.spans)


@asynccontextmanager
async def listening(app: Starlette) -> AsyncIterator[str]:
    """The address of an application on a port."""
    outer = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    with anyio.fail_after(DEADLINE):
        task = asyncio.ensure_future(outer.serve())
        while not outer.started:  # noqa: ASYNC110  # it has no event
            await anyio.sleep(0.01)
        yield f"http://127.0.0.1:{outer.servers[0].sockets[0].getsockname()[1]}"
        outer.should_exit = True
        await task


@pytest.mark.anyio
async def test_what_guards_the_server_guards_it_below_a_path_too(tmp_path: Path, kernelspec: str) -> None:
    server = create_server(settings(tmp_path, kernelspec, transport_http={"auth_token": "a-token-0123456789"}))
    routes = [Mount("/inside", server.http_app())]
    users = [Middleware(AuthenticationMiddleware, backend=ByHeader())]
    app = Starlette(routes=routes, middleware=users, lifespan=server.lifespan)
    token = {"Authorization": "Bearer a-token-0123456789"}
    async with listening(app) as base, httpx2.AsyncClient(timeout=DEADLINE) as http:
        for path in ("/", "/mcp", "/metrics", "/sse"):
            assert (await http.get(f"{base}/inside{path}", headers={"X-User": "alice"})).status_code == 401, path
        url = f"{base}/inside/mcp"
        assert (await http.get(url, headers=token | {"Host": "rebound.example"})).status_code == 421
        assert (await http.get(url, headers=token | {"Origin": "https://evil.example"})).status_code == 403
        async with Client(sse_client(f"{base}/inside/sse", headers=token), mode="legacy") as client:
            assert (await run(client, "6 * 7"))["result"] == "42"
        with pytest.raises(RuntimeError, match="is running already"):
            async with server.lifespan():
                pass
        assert (await http.get(f"{base}/inside/ready")).json() == {"ready": True}


@pytest.mark.anyio
async def test_started_and_ended_by_a_program_twice(tmp_path: Path, kernelspec: str) -> None:
    server = create_server(settings(tmp_path, kernelspec, transport_http={"port": 0}))
    for count in ("1", "2"):
        await server.start_http()
        with pytest.raises(RuntimeError):
            await server.start_http()
        assert server.url is not None
        async with Client(server.url) as client:
            counted = await run(client, "count = globals().get('count', 0) + 1; count", session_id="same")
            assert counted["result"] == count, "the second time it has the session, and its variables"
            waiting = asyncio.ensure_future(server.wait())
        await server.shutdown()
        await waiting
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(server.url.removesuffix("/mcp") + "/health")
    await server.shutdown()


@pytest.mark.anyio
async def test_it_has_one_life_at_a_time_from_its_first_moment(
    tmp_path: Path, kernelspec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = create_server(settings(tmp_path, kernelspec))
    opening = asyncio.Event()

    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        opening.set()
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(server, "_open", opened)
    first = asyncio.ensure_future(server.lifespan().__aenter__())
    await opening.wait()
    with pytest.raises(RuntimeError, match="running already"):
        async with asyncio.timeout(DEADLINE), server.lifespan():
            pass
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not server._is_mounted


@pytest.mark.anyio
async def test_what_the_command_refuses_a_program_is_refused_too(tmp_path: Path, kernelspec: str) -> None:
    http = {"port": 0}
    home = settings(tmp_path, kernelspec, transport_http=http, volumes={"home": {"path": str(tmp_path)}})
    config = settings(tmp_path, kernelspec, transport_http=http).config
    layers = Settings(Values(config=config, policy=Policy(required_layers=["seccomp", "seatbelt"])))  # no machine's
    for wrong, words in ((home, "would open the server's own directory"), (layers, "required_layers: ")):
        server = create_server(wrong)
        with pytest.raises(ConfigurationError, match=words):
            await server.start_http()
        with pytest.raises(ConfigurationError, match=words):
            await server.start_stdio()
        with pytest.raises(ConfigurationError, match=words):
            async with server.lifespan():
                pass


def test_stdio_by_a_program(tmp_path: Path, server_env: dict[str, str]) -> None:
    program = (
        "import asyncio\n"
        "from kernelmcp import create_server, load_settings\n"
        "async def main():\n"
        "    server = create_server(load_settings())\n"
        "    await server.start_stdio()\n"
        "    await server.wait()\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=server_env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
    process.stdin.flush()
    assert b'"id":1' in process.stdout.readline()
    process.stdin.close()
    assert process.wait(DEADLINE) == 0
    assert wait_until(lambda: not list(Path(server_env["KERNELMCP_SERVER__RUNTIME"]).iterdir()))


def test_importing_kernelmcp_is_cheap() -> None:
    code = "import sys, kernelmcp; kernelmcp.__version__; print({'mcp', 'starlette', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    assert not [name for name in kernelmcp.__all__ if getattr(kernelmcp, name) is None]
