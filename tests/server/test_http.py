"""Clients over HTTP: their sessions, who they are, and who they may not be."""

import base64
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import anyio
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from kernelmcp.config.load import load
from kernelmcp.http.token_identity import Rejected
from kernelmcp.http.tokens import Authenticator

from .http_support import INITIALIZE, HttpServer, error_code, run, serving
from .support import wait_until

ALICE, BOB, CAROL = "alice-0123456789", "bob-0123456789", "carol-0123456789"
RESOURCE = "https://kernels.example.com/mcp"
KEY = rsa.generate_private_key(65537, 2048)
OTHER_KEY = rsa.generate_private_key(65537, 2048)
# An issuer may list it; a server that took it would take what any other holder of it has signed.
SHARED_SECRET = b"secret" * 8
SHARED_KEY = {"kty": "oct", "kid": "shared", "alg": "HS256", "k": base64.urlsafe_b64encode(SHARED_SECRET).decode()}


class Issuer(BaseHTTPRequestHandler):
    """An authorization server, as far as a resource server sees one."""

    asked: int = 0

    def do_GET(self) -> None:
        base = f"http://127.0.0.1:{self.server.server_address[1]}"
        if self.path == "/keys":
            type(self).asked += 1
            key = RSAAlgorithm.to_jwk(KEY.public_key())
            own = {**json.loads(key), "kid": "k1", "use": "sig", "alg": "RS256"}
            body = json.dumps({"keys": [own, SHARED_KEY]})
        elif self.path == "/.well-known/oauth-authorization-server":
            body = f'{{"issuer": "{base}", "jwks_uri": "{base}/keys"}}'
        elif self.path == "/.well-known/openid-configuration":
            body = "[" * 100_000  # what no parser reads to its end
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Issuer)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, issuer: str) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("http")
    (folder / "tokens.toml").write_text(f'alice = "{ALICE}"\nbob = "{BOB}"\n')
    with serving(
        folder,
        AUTH__TOKENS_FILE=str(folder / "tokens.toml"),
        AUTH__ISSUER=issuer,
        TRANSPORT_HTTP__CORS_ORIGINS='["https://chat.example.com"]',
        AUTH__RESOURCE_URL=RESOURCE,
        AUTH__REQUIRED_SCOPES='["kernels"]',
        AUTH__ALGORITHMS='["RS256", "HS256"]',
        # Many wrong tokens come from one address here; test_http_tokens.py has the limit on them.
        TRANSPORT_HTTP__RATE_LIMIT_WINDOW_SECONDS="0.001",
    ) as found:
        found.folder = folder
        yield found


def make_jwt(
    issuer: str,
    key: rsa.RSAPrivateKey | str | bytes = KEY,
    kid: str = "k1",
    algorithm: str = "RS256",
    typ: str = "at+jwt",
    **claims: object,
) -> str:
    now = int(time.time())
    found = {"iss": issuer, "aud": RESOURCE, "sub": "dave", "exp": now + 600, "scope": "kernels other", **claims}
    return jwt.encode({k: v for k, v in found.items() if v is not None}, key, algorithm, {"kid": kid, "typ": typ})


# -- sessions -------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["legacy", "sse"])
async def test_older_clients_have_a_default_session_each(server: HttpServer, mode: str) -> None:
    async with server.client(ALICE, mode) as first, server.client(ALICE, mode) as second:
        one = await run(first, "x = 41")
        assert (await run(first, "x + 1"))["result"] == "42"
        other = await run(second, "'x' in globals()")
        assert (other["result"], other["session_created"]) == ("False", True)
        assert one["session_id"] != other["session_id"]
        # A handle works from any connection of its owner.
        assert (await run(second, "x", session_id=one["session_id"]))["result"] == "41"
        for session in (one, other):
            await first.call_tool("destroy_session", {"session_id": session["session_id"]})


@pytest.mark.anyio
async def test_a_modern_client_without_a_handle_gets_a_new_session(server: HttpServer) -> None:
    async with server.client(ALICE, "auto") as client:
        assert client.protocol_version == "2026-07-28"
        first, second = await run(client, "x = 1"), await run(client, "x = 2")
        assert (first["session_created"], second["session_created"]) == (True, True)
        text = (await client.call_tool("execute_code", {"code": "1"})).content[0].text
        assert "Pass session_id=" in text, "a model that reads the text alone knows how to go on"
        with_id = await client.call_tool("execute_code", {"code": "1", "session_id": first["session_id"]})
        assert "Pass session_id=" not in with_id.content[0].text
        assert (await run(client, "x", session_id=first["session_id"]))["result"] == "1"
        assert len(bytes.fromhex(first["session_id"])) * 8 >= 128
        for session in (first, second):
            await client.call_tool("destroy_session", {"session_id": session["session_id"]})


@pytest.mark.anyio
async def test_nobody_reaches_what_is_another_principals(server: HttpServer) -> None:
    async with server.client(ALICE) as alice, server.client(BOB) as bob, server.client(BOB, "auto") as modern:
        secret = await run(alice, "print('secret'); open('secret.txt', 'w').write('secret'); 'secret'")
        session, execution = secret["session_id"], secret["execution_id"]
        await alice.call_tool("checkpoint_session", {"session_id": session, "name": "a"})
        # Bob's session of that name is his own.
        assert (await run(bob, "import os; os.listdir()", session_id=session))["result"] == "[]"
        await bob.call_tool("destroy_session", {"session_id": session})
        info = (await alice.call_tool("get_workspace_info", {})).structured_content
        assert (info["path"], [file["path"] for file in info["files"]]) == (None, ["secret.txt"])
        for client in (bob, modern):
            assert await error_code(client, "read_file", path="secret.txt", session_id=session) == "SESSION_NOT_FOUND"
            assert await error_code(client, "get_execution", execution_id=execution) == "EXECUTION_NOT_FOUND"
            assert await error_code(client, "cancel_execution", execution_id=execution) == "EXECUTION_NOT_FOUND"
            for tool in ("get_sessions", "stop_session", "destroy_session", "checkpoint_session", "restore_session"):
                assert await error_code(client, tool, session_id=session) == "SESSION_NOT_FOUND"
            for checkpoint in ({}, {"from_checkpoint": "a"}):
                assert (
                    await error_code(client, "create_session", from_session=session, **checkpoint)
                    == "SESSION_NOT_FOUND"
                )
            listed = await client.call_tool("get_sessions", {})
            assert session not in str(listed)
            assert session not in str(await client.list_resources())
            for uri in (
                f"kernelmcp://sessions/{session}",
                f"kernelmcp://sessions/{session}/notebook",
                f"kernelmcp://sessions/{session}/files/secret.txt",
                f"kernelmcp://executions/{execution}/stdout",
                f"kernelmcp://executions/{execution}/result",
            ):
                with pytest.raises(MCPError):
                    await client.read_resource(uri)
        assert (await run(alice, "open('secret.txt').read()"))["result"] == "'secret'"
        await alice.call_tool("destroy_session", {"session_id": session})


@pytest.mark.anyio
async def test_odd_numbers_and_fields_in_an_address_are_no_fault_of_the_server(server: HttpServer) -> None:
    async with server.client(ALICE, mode="auto") as client:
        execution = (await run(client, "1"))["execution_id"]
        for number in ("9" * 5_000, "-1", "\u00b2"):
            with pytest.raises(MCPError) as caught:
                await client.read_resource(f"kernelmcp://executions/{execution}/outputs/{number}")
            assert caught.value.error.code == INVALID_PARAMS
        many = "&".join(f"a{number}=1" for number in range(20))
        [page] = (await client.read_resource(f"kernelmcp://executions/{execution}/view?{many}")).contents
        assert execution in str(page)


@pytest.mark.anyio
async def test_a_call_without_a_session_makes_one_only_to_write_and_says_so(server: HttpServer) -> None:
    async with server.client(ALICE, mode="auto") as client:
        before = (await client.call_tool("get_sessions", {})).structured_content["total"]
        for tool, arguments in (
            ("read_file", {"path": "f"}),
            ("get_workspace_info", {}),
            ("reset_workspace", {}),
            ("cancel_execution", {}),
        ):
            assert await error_code(client, tool, **arguments) == "SESSION_NOT_FOUND", tool
        assert (await client.call_tool("get_sessions", {})).structured_content["total"] == before
        written = await client.call_tool("write_file", {"path": "f", "content": "x"})
        session = written.structured_content["session_id"]
        assert (
            f"[This is the new session {session}: pass it as session_id in the next call.]" in written.content[0].text
        )
        assert (await client.call_tool("get_sessions", {})).structured_content["total"] == before + 1
        await client.call_tool("destroy_session", {"session_id": session})


def test_a_connection_belongs_to_who_opened_it(server: HttpServer) -> None:
    opened = server.post(INITIALIZE, ALICE)
    assert opened.status_code == 200
    handle = opened.headers["mcp-session-id"]
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    # As if it did not exist.
    theirs = server.post(listing, BOB, **{"Mcp-Session-Id": handle})
    nobodys = server.post(listing, BOB, **{"Mcp-Session-Id": "0" * 32})
    assert (theirs.status_code, theirs.json()) == (nobodys.status_code, nobodys.json())
    assert theirs.status_code == 404
    assert server.post(listing, ALICE, **{"Mcp-Session-Id": handle}).status_code == 200


# -- who ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "Basic YTpi",
        "Bearer",
        "bearer wrong",
        "Bearer caf\xe9",
        "Bearer " + "x" * 20_000,
        "Bearer a.b.c",
        "Bearer eyJhbGciOiJub25lIn0.e30.",
    ],
)
def test_without_a_valid_token_nothing_is_served(server: HttpServer, authorization: str | None) -> None:
    headers = {"Authorization": authorization.encode("latin-1")} if authorization else {}
    for method, path in [("POST", "/mcp"), ("GET", "/mcp"), ("GET", "/sse"), ("POST", "/messages/"), ("GET", "/"),
                         ("GET", "/metrics")]:  # fmt: skip
        answer = server.http.request(method, server.base + path, headers=headers)
        assert answer.status_code == 401, (method, path)
        assert answer.headers["www-authenticate"].startswith("Bearer ")
        assert "/.well-known/oauth-protected-resource/mcp" in answer.headers["www-authenticate"]
    assert server.get("/health").json() == {"status": "ok"}


def test_tokens_are_not_in_the_log(server: HttpServer) -> None:
    server.post(INITIALIZE, "a-wrong-token-of-mine")
    assert wait_until(lambda: bool(server.logged("request")))
    assert not [line for line in server.lines if ALICE in str(line) or "a-wrong-token-of-mine" in str(line)]


def test_tokens_come_and_go_with_their_file(server: HttpServer) -> None:
    file = server.folder / "tokens.toml"
    before = file.read_text()
    assert server.get("/", CAROL).status_code == 401
    file.write_text(f'alice = "{ALICE}"\ncarol = "{CAROL}"\n')
    assert wait_until(lambda: server.get("/", CAROL).status_code == 200)
    assert server.get("/", BOB).status_code == 401
    file.write_text("this is not TOML")
    unread = "the tokens could not be reloaded; the old ones stay valid"
    assert wait_until(lambda: server.get("/", CAROL).status_code == 200 and bool(server.logged(unread)))
    file.write_text(before)
    assert wait_until(lambda: server.get("/", BOB).status_code == 200)


def test_a_jwt_of_the_issuer_opens_and_no_other(server: HttpServer, issuer: str) -> None:
    assert server.get("/", make_jwt(issuer)).status_code == 200
    assert server.get("/", make_jwt(issuer, aud=[RESOURCE, "https://else.example.com"])).status_code == 200
    assert server.get("/", make_jwt(issuer, typ="JWT")).status_code == 200
    public = KEY.public_key().public_numbers()
    deep = base64.urlsafe_b64encode(b"[" * 6000).decode().rstrip("=")
    wrong = {
        "another's key": make_jwt(issuer, OTHER_KEY),
        "an unknown key": make_jwt(issuer, OTHER_KEY, "k2"),
        "another audience": make_jwt(issuer, aud="https://else.example.com/mcp"),
        "no audience": make_jwt(issuer, aud=None),
        "another issuer": make_jwt("https://evil.example.com"),
        "expired": make_jwt(issuer, exp=int(time.time()) - 600),
        "without an end": make_jwt(issuer, exp=None),
        "not yet valid": make_jwt(issuer, nbf=int(time.time()) + 600),
        "nobody's": make_jwt(issuer, sub=None),
        "nobody's, said": make_jwt(issuer, sub=""),
        "a blank's": make_jwt(issuer, sub=" "),
        "a number's": make_jwt(issuer, sub=7),
        "a terminal's": make_jwt(issuer, sub="dave\x1b[2J"),
        "two lines": make_jwt(issuer, sub="dave\nadmin"),
        "another direction": make_jwt(issuer, sub="dave\u202e"),
        "of a scope that is a number": make_jwt(issuer, scope=5),
        "of another type": make_jwt(issuer, typ="logout+jwt"),
        "with a deep head": f"{deep}.e30.e30",
        "signed with the public key as a secret": make_jwt(issuer, str(public.n), algorithm="HS256"),
        "signed with a shared secret": make_jwt(issuer, SHARED_SECRET, "shared", "HS256"),
    }  # fmt: skip
    for what, token in wrong.items():
        assert server.get("/", token).status_code == 401, what
    short = server.get("/", make_jwt(issuer, scope="other"))
    assert short.status_code == 403
    assert 'error="insufficient_scope"' in short.headers["www-authenticate"]
    # Made-up keys don't make us ask the issuer again and again.
    assert Issuer.asked <= 2


@pytest.mark.anyio
async def test_an_algorithm_that_is_removed_is_not_accepted_any_more(tmp_path: Path, issuer: str) -> None:
    file = tmp_path / "mcp.toml"
    auth = f'[auth]\nissuer = "{issuer}"\naudience = "{RESOURCE}"\n'
    file.write_text(auth)
    settings = load(file, environ={"KERNELMCP_HOME": str(tmp_path)})
    authenticator = Authenticator(settings)
    assert (await authenticator.authenticate(make_jwt(issuer))).principal.endswith(":dave")
    file.write_text(f'{auth}algorithms = ["ES256"]\n')
    assert settings.reload() == (["auth.algorithms"], [])
    with pytest.raises(Rejected):
        await authenticator.authenticate(make_jwt(issuer))


def test_the_protected_resource_metadata_names_the_issuer(server: HttpServer, issuer: str) -> None:
    found = server.get("/.well-known/oauth-protected-resource/mcp").json()
    assert found["resource"] == RESOURCE
    assert [url.rstrip("/") for url in found["authorization_servers"]] == [issuer]
    assert found["scopes_supported"] == ["kernels"]


# -- where from -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example.com", "localhost.evil.com", "127.0.0.1.evil.com", "8.8.8.8",
                                  "localhost:80@evil.com", "", "[::1", "localhost:99999"])  # fmt: skip
def test_a_host_that_is_not_ours_is_refused(server: HttpServer, host: str) -> None:
    for path in ("/mcp", "/health", "/sse", "/"):
        assert server.get(path, ALICE, Host=host).status_code == 421


def test_origins(server: HttpServer) -> None:
    for origin in ("https://evil.example.com", "null", "http://localhost.evil.com", f"http://evil@localhost:{server.port}x",
                   "http://localhost:1", "file://", ""):  # fmt: skip
        if origin:
            assert server.post(INITIALIZE, ALICE, Origin=origin).status_code == 403, origin
    for origin in (f"http://127.0.0.1:{server.port}", f"http://localhost:{server.port}"):
        assert server.post(INITIALIZE, ALICE, Origin=origin).status_code == 200, origin


@pytest.mark.anyio
async def test_every_part_of_the_tools_schemas_says_something(server: HttpServer) -> None:
    """What the Inspector's strict check complains of: a schema with no keyword that constrains."""

    def empty(schema: dict[str, Any], path: str) -> list[str]:
        found = [] if schema.keys() - {"title", "description", "default"} else [path]
        for key in ("properties", "$defs"):
            for name, part in schema.get(key, {}).items():
                found += empty(part, f"{path}.{name}")
        for part in [*schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]:
            found += empty(part, f"{path}[]")
        return found

    async with server.client(ALICE) as client:
        for tool in (await client.list_tools()).tools:
            assert empty(tool.input_schema, tool.name) == []
            assert empty(tool.output_schema, f"{tool.name}->") == []


def test_a_page_of_a_named_origin_may_use_the_server(server: HttpServer) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,mcp-session-id"}
    for origin, status in (("https://chat.example.com", 200), ("https://evil.example.com", 403)):
        found = server.http.options(server.mcp, headers={"Origin": origin, **asked})
        assert found.status_code == status
        assert found.headers.get("access-control-allow-origin") == (origin if status == 200 else None)
    answer = server.post(INITIALIZE, ALICE, Origin="https://chat.example.com")
    assert answer.headers["access-control-allow-origin"] == "https://chat.example.com"
    assert "mcp-session-id" in answer.headers["access-control-expose-headers"].lower()


# -- what operators see ---------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_metrics_count_what_happened(server: HttpServer) -> None:
    async with server.client(ALICE) as client:
        session = (await run(client, "print('x' * 100); 1 / 0"))["session_id"]
        await client.call_tool("destroy_session", {"session_id": session})
    text = (await anyio.to_thread.run_sync(lambda: server.get("/metrics", ALICE))).text
    values = {name: float(value) for name, _, value in (line.rpartition(" ") for line in text.splitlines())
              if not name.startswith("#")}  # fmt: skip
    assert values['kernelmcp_executions_total{status="error"}'] >= 1
    assert values['kernelmcp_tool_calls_total{outcome="failed",tool="execute_code"}'] >= 1
    assert values["kernelmcp_output_bytes_total"] >= 100
    assert values["kernelmcp_queue_seconds_count"] >= 1
    assert values['kernelmcp_memory_bytes{of="server"}'] > 1e6
    assert 0 < values["kernelmcp_memory_used_share"] <= 1
    assert values['kernelmcp_denials_total{reason="token"}'] >= 1
    assert {'kernelmcp_kernels{state="warm"}', 'kernelmcp_sessions{state="idle"}'} <= values.keys()
    assert ALICE not in text
    assert session not in text


def test_status_says_what_is_served(server: HttpServer) -> None:
    found = server.get("/", ALICE).json()
    assert found["endpoints"] == {"streamable_http": "/mcp", "sse": "/sse"}
    assert (found["status"], found["authentication"]) == ("ok", "bearer")
    assert server.get("/ready").json() == {"ready": True}
    assert server.get("/no/such/page", ALICE).status_code == 404


@pytest.mark.anyio
async def test_the_instructions_over_http_say_that_a_session_must_be_named(server: HttpServer) -> None:
    for mode in ("legacy", "auto"):
        async with server.client(ALICE, mode) as client:
            assert "Pass your session_id in each call" in (client.instructions or "")


# -- whoever tries it by hand ---------------------------------------------------------------------------------------

BY_HAND: dict[str, tuple[int, int, str, Any, dict[str, str]]] = {
    "a call before initialize": (400, -32600, '"method": "initialize"', {**INITIALIZE, "method": "tools/list"}, {}),
    "a form": (400, -32600, "Content-Type: application/json", b"code=1", {"Content-Type": "text/plain"}),
    "no accept": (406, -32600, "Accept: application/json, text/event-stream", INITIALIZE, {"Accept": "text/html"}),
    "no body": (400, -32700, '"method": "initialize"', b"", {}),
    "text": (400, -32700, '"method": "initialize"', b"print(1)", {}),
    "other JSON": (400, -32602, '"method": "initialize"', {"code": "1" * 5000}, {}),
    "a list": (400, -32602, "one JSON-RPC message", [INITIALIZE], {}),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_bare_post_is_told_what_to_send_first(server: HttpServer, name: str) -> None:
    status, code, words, body, headers = BY_HAND[name]
    answer = server.post(body, ALICE, **headers)
    found = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    assert (found["jsonrpc"], found["id"], found["error"]["code"]) == ("2.0", None, code)
    assert words in found["error"]["message"]
    assert len(answer.content) < 600, "and one sentence is enough"


def test_what_is_to_be_sent_first_works(server: HttpServer) -> None:
    message = server.post({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, ALICE).json()["error"]["message"]
    first = json.loads(message[message.index("{") : message.rindex("}") + 1])
    answer = server.post(first, ALICE)
    assert answer.status_code == 200
    connection = {"mcp-session-id": answer.headers["mcp-session-id"]}
    listed = server.post({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, ALICE, **connection)
    assert "execute_code" in listed.text
    server.http.delete(server.mcp, headers={**connection, "Authorization": f"Bearer {ALICE}"})
