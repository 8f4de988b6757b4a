"""HTTP requests that are refused, and settings that are not taken over: at once, and nothing else fails for it."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import anyio
import anyio.lowlevel
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp.shared.exceptions import MCPError
from mcp_types import SubscribeRequestParams, SubscriptionFilter, SubscriptionsListenRequestParams
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from kernelmcp.cells.cell import Outputs
from kernelmcp.config import reload
from kernelmcp.config.load import load
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ConfigurationError, RateLimited, ServerError
from kernelmcp.executions.execution import Execution
from kernelmcp.http import guard, jwt_verifier
from kernelmcp.http.guard import SHARE_KEY, Gate, Guard
from kernelmcp.http.mcp_connections import MAX_INITIALIZE_BYTES, Connections, whole_message
from kernelmcp.http.rate_limits import Throttle
from kernelmcp.http.token_identity import Rejected
from kernelmcp.http.tokens import Authenticator
from kernelmcp.mcp_server.callers import ANSWER_BY_KEY
from kernelmcp.mcp_server.notifications import MAX_URI_CHARS, Notifications
from kernelmcp.mcp_server.resources import MAX_WAITING, Resources
from kernelmcp.mcp_server.tools import package_tools
from kernelmcp.mcp_server.views.pages import Asked
from kernelmcp.notebook.transcript import MAX_NOTEBOOK_BYTES
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.life import State
from kernelmcp.shares import Shares

pytestmark = pytest.mark.anyio
RSA_KEY = rsa.generate_private_key(65537, 2048)


class Connection:
    def __init__(self) -> None:
        self.exit_stack = AsyncExitStack()


def test_nothing_is_always_available() -> None:
    shares = Shares(lambda: 64, 16)
    assert [shares.take(key, amount) for key, amount in (("a", 16), ("a", 16), ("b", 1), ("a", 1), ("a", 0))] == [
        True,
        True,
        True,
        False,
        True,
    ]


async def test_places_go_round_among_those_who_wait() -> None:
    shares = Shares(lambda: 2, 1)
    served = ""

    async def turn(key: str) -> None:
        nonlocal served
        async with shares.turn(key):
            served += key
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for key in "aaaaabbbbbccd":
            tasks.start_soon(turn, key)
    assert served == "abcdabcababab"
    assert (shares.taken, shares._waiting) == (0, {})


@pytest.mark.parametrize("is_granted", [False, True])
async def test_who_no_longer_waits_gets_no_place(is_granted: bool) -> None:
    shares = Shares(lambda: 1, 1)
    served: list[str] = []

    async def turn(key: str, scope: anyio.CancelScope) -> None:
        with scope:
            async with shares.turn(key):
                await anyio.lowlevel.checkpoint()
                served.append(key)

    scopes = {key: anyio.CancelScope() for key in "ab"}
    async with anyio.create_task_group() as tasks:
        async with shares.turn("c"):
            for key, scope in scopes.items():
                tasks.start_soon(turn, key, scope)
            await anyio.wait_all_tasks_blocked()
            if not is_granted:
                scopes["a"].cancel()
        if is_granted:
            scopes["a"].cancel()
    assert served == ["b"]
    assert (shares.taken, shares._waiting) == (0, {})


async def test_one_principal_s_views_do_not_end_the_wait_of_another_s() -> None:
    callers = {name: Caller(name, lambda: None) for name in ("token:a", "token:b")}
    execution = Execution("s", "", "", 1.0, Outputs())

    class Sessions:
        def all(self, _caller: Caller) -> list[Any]:
            return []

        async def execution(self, _caller: Caller, _execution_id: str) -> Execution:
            return execution

    class NoneBegun:
        async def wait_begun(self, _seconds: float) -> None:
            await anyio.sleep_forever()

    resources = Resources(cast("Any", Sessions()), lambda ctx: callers[cast("Any", ctx).name], cast("Any", None))
    ended: list[str] = []

    async def read(name: str, uri: str) -> None:
        asked = Asked.parse(uri)
        assert asked is not None
        context = SimpleNamespace(name=name, request_context=SimpleNamespace(request=None))
        with suppress(ResourceNotFoundError):
            await resources.view(asked, cast("Any", context), cast("Any", NoneBegun()))
        ended.append(name)

    latest, page = "kernelmcp://views/latest?code=1-1&wait=20", "kernelmcp://executions/e/view?wait=20&since=0-0-0-0"
    async with anyio.create_task_group() as tasks:
        for name, uris in (("token:a", [latest, page] * MAX_WAITING), ("token:b", [latest, page])):
            for uri in uris:
                tasks.start_soon(read, name, uri)
        await anyio.wait_all_tasks_blocked()
        assert set(ended) == {"token:a"}
        assert len(ended) > MAX_WAITING
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_printed_output_is_a_resource_if_one_message_can_have_it(stream: str) -> None:
    registry = SimpleNamespace(execution=AsyncMock())
    resources = Resources(cast("Any", registry), cast("Any", lambda _: None), cast("Any", None))
    for text, is_read in (
        ("é" * (MAX_NOTEBOOK_BYTES // 2), True),
        ("\x1b" * (MAX_NOTEBOOK_BYTES // 6), True),
        ("x" * (MAX_NOTEBOOK_BYTES + 1), False),
        ("\x01" * (MAX_NOTEBOOK_BYTES // 6 + 1), False),
    ):
        registry.execution.return_value = Execution("s", "", "", 1.0, outputs := Outputs())
        outputs.spool(stream).append(text)
        with nullcontext() if is_read else pytest.raises(ResourceError, match=f" {len(text):,} bytes.* read_file"):
            assert await getattr(resources, stream)("e", cast("Any", None)) == text


async def test_a_request_that_is_refused_after_its_body_was_read_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard, "CANCELLATION_SECONDS", 600.0)
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "initialize"}'
    arriving: list[Message] = [{"type": "http.request", "body": body}]
    statuses: list[int] = []

    async def receive() -> Message:
        if not arriving:
            await anyio.sleep_forever()  # as uvicorn does until the client leaves
        return arriving.pop()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def full(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        raise RateLimited("too many connections", retry_after_seconds=1)

    settings = Settings()
    gate = Gate(settings, Authenticator(settings), Throttle(settings))
    headers = [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers, "client": ("127.0.0.1", 1)}
    with anyio.fail_after(10):
        await Guard(full, gate)(scope, receive, send)
    assert statuses == [429]


@pytest.mark.parametrize(
    ("is_whole", "is_refused", "status"), [(False, False, 503), (True, True, 429), (True, False, 408)]
)
async def test_a_cancellation_needs_no_place_but_must_come_whole_and_be_answered_in_time(
    is_whole: bool, is_refused: bool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "CANCELLATION_SECONDS", 0.2)
    monkeypatch.setattr(Gate, "deadline_seconds", 0.2)
    body = b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}'
    arriving: list[Message] = [{"type": "http.request", "body": body, "more_body": not is_whole}]
    statuses: list[int] = []

    async def receive() -> Message:
        if not arriving:
            await anyio.sleep_forever()
        return arriving.pop()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if is_refused:  # the connection is another server's, and there is no place for it here
            raise RateLimited("too many connections", retry_after_seconds=1)
        await anyio.sleep_forever()

    settings = load(environ={"KERNELMCP_TRANSPORT_HTTP__MAX_CONCURRENT_REQUESTS": "1"})
    throttle = Throttle(settings)
    headers = [(b"content-length", b"4000")]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers, "client": ("127.0.0.1", 1)}
    with throttle.request("other"), anyio.fail_after(10):
        await Guard(app, Gate(settings, Authenticator(settings), throttle))(scope, receive, send)
    assert statuses == [status]


@pytest.mark.parametrize("tools_answer", [False, True])
async def test_a_call_learns_by_when_it_must_answer_unless_that_is_on_a_stream(tools_answer: bool) -> None:
    times: list[float | None] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        times.append(scope.get(ANSWER_BY_KEY))

    settings = Settings()
    gate = Gate(settings, Authenticator(settings), Throttle(settings))
    nothing: Any = None
    scope: Scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": [], "client": ("127.0.0.1", 1)}
    began = anyio.current_time()
    await Guard(app, gate, tools_answer=tools_answer)(scope, nothing, nothing)
    (time,) = times
    if tools_answer:
        assert time is None
    else:
        assert time is not None
        assert began < time < anyio.current_time() + gate.deadline_seconds


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_stream_lasts_but_its_request_must_come_in_time(
    is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the header says is compared with the body only when that is there."""
    monkeypatch.setattr(Gate, "deadline_seconds", 0.2)
    arriving: list[Message] = [{"type": "http.request", "body": b"{", "more_body": not is_whole}]
    statuses: list[int] = []

    async def receive() -> Message:
        return arriving.pop()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            await anyio.sleep_forever()  # the rest never comes
        while anyio.current_time() < began + 0.2:
            await anyio.lowlevel.checkpoint()  # the limit would end it here
        await Response("events")(scope, receive, send)

    settings, began = Settings(), anyio.current_time()
    headers = [(b"mcp-method", b"subscriptions/listen"), (b"mcp-protocol-version", b"2026-07-28")]
    scope: Scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers, "client": ("127.0.0.1", 1)}
    with anyio.fail_after(60):
        await Guard(stream, Gate(settings, Authenticator(settings), Throttle(settings)))(scope, receive, send)
    assert statuses == [200 if is_whole else 408]


@pytest.mark.parametrize("version", [None, b"2025-11-25", b"2026-07-28"])
@pytest.mark.parametrize("tools_answer", [False, True])
async def test_a_header_makes_no_stream_of_a_request_in_which_mcp_does_not_check_it(
    version: bytes | None, tools_answer: bool
) -> None:
    places: list[tuple[int, int]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        places.append((throttle.active, throttle.streams))

    settings = Settings()
    throttle, nothing = Throttle(settings), cast(Any, None)
    headers = [(b"mcp-method", b"subscriptions/listen")]
    if version is not None:
        headers.append((b"mcp-protocol-version", version))
    scope: Scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers, "client": ("127.0.0.1", 1)}
    guarded = Guard(app, Gate(settings, Authenticator(settings), throttle), tools_answer=tools_answer)
    await guarded(scope, nothing, nothing)
    is_stream = version == b"2026-07-28" and not tools_answer
    assert places == [(0, 1) if is_stream else (1, 0)]


@pytest.mark.parametrize("more", [0, 1])
async def test_an_initialize_is_refused_if_it_is_too_large_to_be_kept(more: int) -> None:
    start, end = b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"x": "', b'"}}'
    body = start + b"x" * (MAX_INITIALIZE_BYTES + more - len(start + end)) + end
    statuses: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    found = await whole_message({"type": "http", "headers": []}, receive, send, 2**20, lambda _: None)
    assert (found is None, statuses) == ((True, [413]) if more else (False, []))


async def test_a_resource_with_a_long_uri_cannot_be_subscribed_to() -> None:
    long = "x" * (MAX_URI_CHARS + 1)
    context: Any = SimpleNamespace(session=SimpleNamespace(_connection=Connection()), params=None)
    async with anyio.create_task_group() as tasks:
        notifications = Notifications(tasks, lambda _: "token:a")
        await notifications.subscribe(context, SubscribeRequestParams(uri=long[1:]))
        with pytest.raises(MCPError, match="at most 2,048 characters"):
            await notifications.subscribe(context, SubscribeRequestParams(uri=long))
        asked = SubscriptionFilter(resource_subscriptions=[long])
        with pytest.raises(MCPError, match="at most 2,048 characters"):
            await notifications.listen(context, SubscriptionsListenRequestParams(notifications=asked))


async def test_a_file_of_tokens_that_is_not_there_is_refused_in_changed_settings(tmp_path: Path) -> None:
    config, tokens = tmp_path / "mcp.toml", tmp_path / "tokens.toml"
    tokens.write_text('ann = "first"')
    config.write_text(f'[auth]\ntokens_file = "{tokens}"\n')
    settings = load(config_file=config, environ={})
    authenticator = Authenticator(settings)
    config.write_text(f'[auth]\ntokens_file = "{tmp_path / "tokns.toml"}"\n')
    with pytest.raises(ConfigurationError, match="cannot be read"):
        settings.reload()
    assert settings.config.auth.tokens_file == tokens
    assert (await authenticator.authenticate("first")).principal == "token:ann"


@pytest.mark.parametrize("failure", [RuntimeError("no more instances"), OSError(24, "too many open files")])
@pytest.mark.parametrize("is_grouped", [False, True])
async def test_files_that_cannot_be_watched_end_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, is_grouped: bool
) -> None:
    class Watchfiles:
        @staticmethod
        async def awatch(*_: Any, **__: Any) -> Any:
            raise ExceptionGroup("of its task group", [failure]) if is_grouped else failure
            yield

    monkeypatch.setattr(reload.importlib, "import_module", lambda _: Watchfiles)
    (config := tmp_path / "mcp.toml").touch()
    with anyio.fail_after(10):
        await reload.keep_current(load(config_file=config, environ={}), lambda _: None)


async def test_a_session_that_was_unloaded_is_not_remembered() -> None:
    class Life:
        is_ending, state = False, State.STOPPED

    class Session:
        principal, id, life = "token:a", "s", Life()

    async with anyio.create_task_group() as tasks:
        notifications = Notifications(tasks, lambda _: "token:a")
        session = Session()
        notifications.session_changed(cast("Any", session))
        notifications.kernel_changed(cast("Any", session))
        assert notifications._known == {("token:a", "s")}
        session.life.is_ending, session.life.state = True, State.ENDING
        notifications.kernel_changed(cast("Any", session))
        assert notifications._known == {("token:a", "s")}, "its deletion is said once, at its end"
        session.life.state = State.GONE
        notifications.kernel_changed(cast("Any", session))
        assert notifications._known == set()


async def test_refused_settings_are_not_in_effect_in_part(tmp_path: Path) -> None:
    """What listens before the one that refuses has taken the new ones over, and takes the old ones again."""
    policy = tmp_path / "policy.toml"
    policy.write_text("output_budget_chars = 2000")
    settings = load(policy_file=policy, environ={})
    taken: list[int] = []

    def refuse() -> None:
        if settings.policy.output_budget_chars == 500:
            raise ConfigurationError("no")

    settings.on_change(lambda: taken.append(settings.policy.output_budget_chars))
    settings.on_change(refuse)
    policy.write_text("output_budget_chars = 500")
    with pytest.raises(ConfigurationError, match="no"):
        settings.reload()
    assert taken == [500, 2000]


@pytest.mark.parametrize(
    ("published", "accepted"),
    [(None, ["PS256", "RS256"]), ("RS256", ["RS256"]), ("PS256", ["PS256"]), ("RS384", [])],
)
async def test_a_key_verifies_its_algorithm_or_the_listed_ones_of_its_type(
    published: str | None, accepted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = {**json.loads(RSAAlgorithm.to_jwk(RSA_KEY.public_key())), "kid": "k"}

    async def document(*_: object) -> dict[str, Any]:
        return {"keys": [key if published is None else {**key, "alg": published}]}

    monkeypatch.setattr(jwt_verifier, "_get", document)
    listed = ("RS256", "PS256", "ES256", "HS256")
    issuer = jwt_verifier.Issuer("https://i", "us", "https://i/keys", lambda: listed)
    claims = {"iss": "https://i", "aud": "us", "sub": "dave", "exp": 2**40}
    found: list[str] = []
    for algorithm in ("PS256", "PS384", "RS256", "RS384"):
        with suppress(Rejected):
            identity = await issuer.verify(jwt.encode(claims, RSA_KEY, algorithm, {"kid": "k"}))
            assert identity.principal == "oauth:https://i:dave"
            found.append(algorithm)
    assert found == accepted


def test_a_failed_installation_names_the_session_that_was_made_for_it() -> None:
    error = SimpleNamespace(name="PackageNotFound", value="no package nosuch", traceback=[])
    execution: Any = SimpleNamespace(failure=None, status="error", error=error, session_id="new", id="e")
    for note, told in (("\n[This is the new session new.]", ["[This is the new session new.]"]), ("", [])):
        with pytest.raises(ServerError) as raised:
            package_tools._result(execution, note, 1000)
        assert raised.value.suggestions[1:] == told


def test_a_connection_whose_client_goes_while_it_is_recorded_is_counted() -> None:
    class Recording:
        """Of the servers that share a home: the client goes while this writes the record."""

        def keeping(self, scope: Scope, opening: Any, send: Send) -> Send:
            async def sending(message: Message) -> None:
                raise TimeoutError

            return sending

    opened: dict[str, object] = {}

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        opened["c1"] = object()
        headers = [(b"mcp-session-id", b"c1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    manager: Any = SimpleNamespace(handle_request=answer, _server_instances=opened, max_sessions=4)
    nothing, recording = cast(Any, None), cast(Any, Recording())
    connections = Connections(manager, nothing, 1000, nothing, nothing, recording)

    async def initialize() -> None:
        with suppress(TimeoutError):
            head: Any = SimpleNamespace(method="initialize", id=1, mirrored={}, opening={}, may_wait=False)
            await connections._post(
                None, head, nothing, {"type": "http", "headers": [], SHARE_KEY: "a"}, nothing, nothing
            )

    anyio.run(initialize)
    assert list(connections._shares) == list(opened)
