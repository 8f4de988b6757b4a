"""Logins and their files, without a browser and without processes."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import AuthorizationCodeResult, OAuthToken

from kernelmcp.atomic import replace_text
from kernelmcp.upstreams.addresses import AddressRules
from kernelmcp.upstreams.logins import login_file, oauth
from kernelmcp.upstreams.logins.browser_login import _fields_in
from kernelmcp.upstreams.logins.login_file import LoginFile
from kernelmcp.upstreams.logins.oauth import Logins, NewLogin, _about

pytestmark = pytest.mark.anyio
HERE = "http://127.0.0.1:9"
URL = f"{HERE}/mcp"
SECRET = "correct-horse-battery-staple"
TOKENS = {"access_token": SECRET, "token_type": "Bearer", "refresh_token": f"re-{SECRET}"}


class Servers:
    """An upstream and its authorization server; `said` replaces answers by their path."""

    def __init__(self, **said: httpx2.Response) -> None:
        self._said = {f"/{path}": response for path, response in said.items()}

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path in self._said:
            return self._said[path]
        if path == "/mcp":
            return httpx2.Response(200 if "authorization" in request.headers else 401)
        if path == "/register":
            return httpx2.Response(201, json={**json.loads(request.content), "client_id": "c"})
        if path == "/token":
            return httpx2.Response(200, json=TOKENS)
        if path == "/.well-known/oauth-authorization-server":
            paths = {name: f"{HERE}/{path}" for name, path in ENDPOINTS.items()}
            more = {"response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]}
            return httpx2.Response(200, json={"issuer": HERE, **paths, **more})
        return httpx2.Response(404)


ENDPOINTS = {
    "authorization_endpoint": "authorize",
    "token_endpoint": "token",
    "registration_endpoint": "register",
}


async def logged_in(file: LoginFile, servers: Servers) -> httpx2.Response:
    shown: list[str] = []

    async def show(address: str) -> None:
        shown.append(address)

    async def wait() -> AuthorizationCodeResult:
        [state] = parse_qs(urlsplit(shown[0]).query)["state"]
        return AuthorizationCodeResult(code="code", state=state)

    login = NewLogin(AddressRules(URL, allow_private=True), file, f"{HERE}/callback", show, wait)
    async with httpx2.AsyncClient(auth=login, transport=httpx2.MockTransport(servers)) as client:
        return await client.post(URL)


async def test_a_login_is_stored(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    assert (await logged_in(LoginFile(file, URL, anew=True), Servers())).status_code == 200
    assert json.loads(file.read_text())["tokens"]["access_token"] == SECRET


async def test_a_login_that_cannot_be_stored_says_so(tmp_path: Path) -> None:
    (tmp_path / "logins").write_text("no folder")
    with pytest.raises(OAuthFlowError, match="the login cannot be stored: "):
        await logged_in(LoginFile(tmp_path / "logins" / "one.json", URL, anew=True), Servers())


ODD: dict[str, Any] = {**TOKENS, "access_token": {"of": SECRET}}


def test_of_a_pasted_text_that_is_no_address_there_is_no_answer() -> None:
    assert _fields_in("http://[x?code=1") == {}
    assert _fields_in(f"{HERE}/?code=1&state=2") == {"code": "1", "state": "2"}


@pytest.mark.parametrize(
    ("path", "response", "why"),
    [
        ("token", httpx2.Response(200, json=ODD), "its answer was not understood"),
        ("token", httpx2.Response(400, json={"error": SECRET}), "it answered with HTTP 400"),
        ("register", httpx2.Response(201, json={"client_secret": SECRET}), "its answer was not understood"),
        ("register", httpx2.Response(403, text=SECRET), "it answered with HTTP 403"),
    ],
    ids=["odd tokens", "no tokens", "odd registration", "no registration"],
)
async def test_why_a_login_failed_is_said_without_what_the_server_sent(
    tmp_path: Path, path: str, response: httpx2.Response, why: str
) -> None:
    with pytest.raises(OAuthFlowError) as caught:
        await logged_in(LoginFile(tmp_path / "one.json", URL, anew=True), Servers(**{path: response}))
    assert str(caught.value) == f"the login server 127.0.0.1: {why}"


class Renewing:
    """A login's file and what is renewed from it; the disk is full while `full`."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = file
        self.full = False
        self.store(0)
        self.login = LoginFile(file, URL)
        self.context = OAuthContext(URL, _about(f"{HERE}/callback"), self.login, None, None)
        self.login.fill(self.context)

        def write(file: Path, text: str) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            replace_text(file, text)

        monkeypatch.setattr(login_file, "replace_text", write)

    def store(self, number: int) -> None:
        tokens = {"access_token": f"a{number}", "token_type": "Bearer", "refresh_token": f"r{number}"}
        replace_text(self.file, json.dumps({"url": URL, "tokens": tokens}))

    async def renew(self, number: int) -> None:
        self.context.current_tokens = OAuthToken(access_token=f"a{number}", refresh_token=f"r{number}")
        await self.login.set_tokens(self.context.current_tokens)

    @property
    def stored(self) -> str:
        return json.loads(self.file.read_text())["tokens"]["refresh_token"]

    @property
    def next(self) -> str | None:
        assert self.context.current_tokens is not None
        return self.context.current_tokens.refresh_token


@pytest.fixture
def renewing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Renewing:
    return Renewing(tmp_path / "one.json", monkeypatch)


async def test_tokens_that_could_not_be_written_are_used_and_written_later(renewing: Renewing) -> None:
    """An authorization server may take a second use of the stored ones for a theft."""
    renewing.full = True
    with pytest.raises(OAuthFlowError, match="cannot be stored: No space"):
        await renewing.renew(1)
    renewing.login.read()
    assert (renewing.next, renewing.stored) == ("r1", "r0")
    renewing.full = False
    renewing.login.read()
    assert (renewing.next, renewing.stored) == ("r1", "r1")
    renewing.store(2)  # by another server
    renewing.login.read()
    assert renewing.next == "r2"


async def test_a_login_that_a_person_has_made_replaces_tokens_that_could_not_be_written(renewing: Renewing) -> None:
    renewing.full = True
    with pytest.raises(OAuthFlowError, match="cannot be stored: No space"):
        await renewing.renew(1)
    renewing.full = False
    renewing.store(2)
    renewing.login.read()
    assert (renewing.next, renewing.stored) == ("r2", "r2")


class Rotating:
    """An authorization server, which answers when it may, and an upstream that takes the newest token."""

    def __init__(self) -> None:
        self.used: list[str] = []
        self.valid = "a0"
        self.asked, self.goes_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/mcp":
            return httpx2.Response(200 if request.headers["authorization"] == f"Bearer {self.valid}" else 401)
        self.used.extend(parse_qs(request.content.decode())["refresh_token"])
        self.asked.set()
        await self.goes_on.wait()
        number = len(self.used)
        self.valid = f"a{number}"
        tokens = {"access_token": f"a{number}", "refresh_token": f"r{number}", "token_type": "Bearer"}
        return httpx2.Response(200, content=_unread(json.dumps({**tokens, "expires_in": 3600}).encode()))


async def _unread(body: bytes) -> AsyncIterator[bytes]:
    yield body


@pytest.mark.parametrize("full", [False, True])
async def test_connections_of_one_server_renew_its_login_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """An authorization server may take a second use of a refresh token for a theft. A connection may still renew the
    login while the next one is opened; the renewed one may be in memory only."""
    servers, rules = Rotating(), AddressRules(URL, allow_private=True)
    monkeypatch.setattr(oauth, "BoundedTransport", lambda _: httpx2.MockTransport(servers))
    logins = Logins(tmp_path)
    logins.file("one").parent.mkdir()
    tokens = {"access_token": "a0", "token_type": "Bearer", "refresh_token": "r0"}
    client = {"client_id": "c", "redirect_uris": [HERE]}
    logins.file("one").write_text(json.dumps({"url": URL, "tokens": tokens, "client": client, "expires_at": 1}))

    def write(file: Path, text: str) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_text(file, text)

    monkeypatch.setattr(login_file, "replace_text", write)

    def opened() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(auth=logins.authorize("one", rules, {}), transport=httpx2.MockTransport(servers))

    async with opened() as old:
        before = asyncio.create_task(old.get(URL))
        await servers.asked.wait()
        async with opened() as new:
            after = asyncio.create_task(new.get(URL))
            servers.goes_on.set()
            assert [(await each).status_code for each in (before, after)] == [200, 200]
            assert servers.used == ["r0"]
            for first, second in ((new, old), (old, new)):
                servers.valid = ""
                assert [(await each.get(URL)).status_code for each in (first, second)] == [200, 200]
            assert servers.used == ["r0", "r1", "r2"]


NEWER = {"access_token": "a1", "token_type": "Bearer", "refresh_token": "renew"}


@pytest.mark.parametrize("is_opened", [True, False])
@pytest.mark.parametrize(
    "then",
    [None, {"url": f"{HERE}/other", "tokens": NEWER}, {"url": URL, "tokens": NEWER, "client": {"client_id": "d"}}],
    ids=["removed", "another address", "a new login"],
)
async def test_a_renewal_writes_nothing_over_what_a_person_has_done_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: dict[str, Any] | None, is_opened: bool
) -> None:
    servers, rules = Rotating(), AddressRules(URL, allow_private=True)
    monkeypatch.setattr(oauth, "BoundedTransport", lambda _: httpx2.MockTransport(servers))
    logins = Logins(tmp_path)
    file = logins.file("one")
    file.parent.mkdir()
    tokens = {"access_token": "a0", "token_type": "Bearer", "refresh_token": "r0"}
    client = {"client_id": "c", "redirect_uris": [HERE]}
    file.write_text(json.dumps({"url": URL, "tokens": tokens, "client": client, "expires_at": 1}))
    auth = logins.authorize("one", rules, {})
    async with httpx2.AsyncClient(auth=auth, transport=httpx2.MockTransport(servers)) as opened:
        call = asyncio.create_task(opened.get(URL))
        await servers.asked.wait()
        file.unlink()
        if then is not None:
            replace_text(file, json.dumps(then))
        if is_opened:
            logins.authorize("one", rules, {})  # for another connection, which reads the file
        servers.goes_on.set()
        await asyncio.wait([call])
    assert isinstance(call.exception(), login_file.LoginNeeded) == (then is None or then["url"] != URL)
    assert (json.loads(file.read_text()) if file.exists() else None) == then


async def test_a_login_that_a_person_has_removed_is_used_for_no_new_connection(tmp_path: Path) -> None:
    logins, rules = Logins(tmp_path), AddressRules(URL, allow_private=True)
    logins.file("one").parent.mkdir()
    logins.file("one").write_text(json.dumps({"url": URL, "tokens": TOKENS}))
    assert isinstance(logins.authorize("one", rules, {}), oauth._KeptLogin)
    assert logins.secrets("one") == [TOKENS["access_token"], TOKENS["refresh_token"]]
    logins.file("one").unlink()
    assert isinstance(logins.authorize("one", rules, {}), oauth._NoLogin)
