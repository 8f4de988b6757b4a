"""OAuth for upstreams over HTTP: requests carry the tokens of a person's login, which are renewed as needed.

`kernelmcp upstreams login NAME` creates a login, using mcp's flow. A server only renews: it asks the one address in the
stored login, and discovers nothing else.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import urljoin

import anyio
import anyio.to_thread
import httpx2
import structlog
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, ValidationError

from kernelmcp.atomic import Stamp, stamp_of
from kernelmcp.upstreams.addresses import AddressRefused, AddressRules
from kernelmcp.upstreams.bounded_http import BoundedTransport, proxy_for
from kernelmcp.upstreams.http import FAILED, NOT_SENT
from kernelmcp.upstreams.logins.login_file import LoginFile, LoginNeeded, NotRenewed, check_usable

CLIENT_NAME = "kernelmcp"
# Time limit for one renewal; then the pause after a failed one, initial and longest. Seconds.
RENEWAL_SECONDS, PAUSE_SECONDS = 30.0, (1.0, 60.0)
MAX_TOKEN_BYTES = 64 * 1024
# A token may be used up or revoked between its renewal by another server and our request.
ATTEMPTS = 3
# Placeholder for the redirect address while nobody logs in: it is sent nowhere.
_NO_REDIRECT = "http://127.0.0.1/callback"
# Answers that require a new login by a person (RFC 6749, 5.2); all others may be temporary.
_REFUSALS = (400, 401, 403)

log = structlog.get_logger(__name__)


class Logins:
    """The stored logins."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds all data on upstreams."""
        self._folder = folder / "logins"
        # One for each name and address: it may have tokens that could not be written.
        self._used: dict[tuple[str, str], LoginFile] = {}

    def file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def stamp(self, name: str) -> Stamp:
        """Changes with each login."""
        return stamp_of(self.file(name))

    def secrets(self, name: str) -> list[str]:
        """The current tokens of a server's connections."""
        return [secret for (used, _), kept in self._used.items() if used == name for secret in kept.secrets]

    def authorize(self, name: str, rules: AddressRules, headers: Mapping[str, str]) -> httpx2.Auth | None:
        """Authentication for requests. None if the settings have an authorization header: then no login is needed."""
        if any(header.lower() == "authorization" for header in headers):
            return None
        kept = self._used.setdefault((name, rules.url), LoginFile(self.file(name), rules.url, anew=True))
        kept.read()
        if kept.is_empty:
            return _NoLogin()
        return _KeptLogin(rules, kept)


class NewLogin(httpx2.Auth):
    """mcp's login flow, for a waiting person."""

    def __init__(
        self,
        rules: AddressRules,
        kept: LoginFile,
        redirect: str,
        show: Callable[[str], Awaitable[None]],
        wait: Callable[[], Awaitable[AuthorizationCodeResult]],
    ) -> None:
        """`show` shows the person an address, `wait` waits for its result."""
        self._rules = rules
        self._show = show
        self._provider = OAuthClientProvider(rules.url, _about(redirect), kept, self._show_if_safe, wait)
        kept.fill(self._provider.context)

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Raises `OAuthFlowError`: mcp reports a missing answer of a server like one that it gave, and quotes answers,
        whose secrets are not known here."""
        flow = self._provider.async_auth_flow(request)
        outgoing, status = request, 0
        try:
            outgoing = await anext(flow)
            while True:
                response = yield outgoing
                status = response.status_code
                if outgoing is not request and (why := response.extensions.get(FAILED)) is not None:
                    raise OAuthFlowError(f"the login server {outgoing.url.host}: {why}")
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        except (OAuthTokenError, OAuthRegistrationError) as exc:
            why = f"it answered with HTTP {status}" if status >= 300 else "its answer was not understood"
            raise OAuthFlowError(f"the login server {outgoing.url.host}: {why}") from exc
        finally:
            await flow.aclose()

    async def _show_if_safe(self, address: str) -> None:
        known = self._provider.context.oauth_metadata
        if known is not None and "S256" not in (known.code_challenge_methods_supported or ()):
            raise OAuthFlowError(
                "the authorization server does not offer PKCE with S256, without which logins can be stolen"
            )
        await self._check(httpx2.URL(address))
        await self._show(address)

    async def _check(self, url: httpx2.URL) -> None:
        """Send a browser only to addresses that we would connect to. Looks the name up once more, as a proxy does."""
        if url.scheme not in ("http", "https"):
            raise OAuthFlowError("the address to log in at does not begin with http:// or https://")
        if await anyio.to_thread.run_sync(proxy_for, url) is not None:
            return
        try:
            await self._rules.permitted(url.host, url.port or 443)
        except AddressRefused as exc:
            raise OAuthFlowError(f"the login server {url.host}: {exc}") from exc
        except (OSError, UnicodeError) as exc:
            raise OAuthFlowError(f"the login server {url.host}: it cannot be reached: {exc}") from exc


def _about(redirect: str) -> OAuthClientMetadata:
    return OAuthClientMetadata(client_name=CLIENT_NAME, redirect_uris=[AnyUrl(redirect)])


class _NoLogin(httpx2.Auth):
    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        response = yield request
        if response.status_code == 401:
            raise LoginNeeded


class _KeptLogin(httpx2.Auth):
    """Adds the stored token to requests; a rejected or expired token is renewed once for all waiting requests."""

    def __init__(self, rules: AddressRules, kept: LoginFile) -> None:
        self._rules = rules
        self._store = kept
        self._context = OAuthContext(rules.url, _about(_NO_REDIRECT), kept, None, None)
        self._renewal: asyncio.Task[None] | None = None
        self._failures = 0
        self._failed = ""
        self._again_at = 0.0
        kept.fill(self._context)

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        context, used = self._context, ""
        for _ in range(ATTEMPTS):
            tokens = context.current_tokens
            if tokens is None or tokens.access_token == used or not context.is_token_valid():
                try:
                    await self._renewed(used or (tokens.access_token if tokens is not None else ""))
                except NotRenewed as exc:
                    request.extensions = {**request.extensions, NOT_SENT: f"its login could not be renewed: {exc}"}
                    yield request
                    return
                tokens = context.current_tokens
            if tokens is None:
                raise LoginNeeded
            used = tokens.access_token
            request.headers["Authorization"] = f"Bearer {used}"
            response = yield request
            if response.status_code == 403 and "insufficient_scope" in response.headers.get("www-authenticate", ""):
                raise LoginNeeded
            if response.status_code != 401:
                return
        raise LoginNeeded

    async def _renewed(self, used: str) -> None:
        """Get a token other than the used one, renewed here or by another server. Cancelling a call does not cancel the
        renewal: the answer would be lost, and with it the login. Raises `LoginNeeded`, `NotRenewed`."""
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._renew(used))
            self._renewal.add_done_callback(self._done)
        await asyncio.shield(self._renewal)

    def _done(self, renewal: asyncio.Task[None]) -> None:
        self._renewal = None
        if not renewal.cancelled():
            renewal.exception()  # the waiting requests have it

    async def _renew(self, used: str) -> None:
        if (wait := self._again_at - time.monotonic()) > 0:
            raise NotRenewed(f"{self._failed}; it is tried again in {wait:.0f} s")
        try:
            async with self._store.locked():
                await anyio.to_thread.run_sync(self._store.read)
                self._store.fill(self._context)  # perhaps renewed for another connection
                found = self._context.current_tokens
                if found is not None and found.access_token != used and self._context.is_token_valid():
                    return
                tokens = await self._ask(self._request())
                await anyio.to_thread.run_sync(self._store.read)
                if not self._store.has(found):  # a person, who needs no lock, has replaced or removed it
                    self._store.fill(self._context)
                    return
                self._context.current_tokens = tokens
                self._context.update_token_expiry(tokens)
                try:
                    self._store.store(tokens, self._context)
                except OAuthFlowError as exc:  # written with the next renewal: until then it is in memory only
                    log.warning("a renewed login is lost if the server ends", server=self._store.name, error=str(exc))
        except NotRenewed as exc:
            least, most = PAUSE_SECONDS
            self._failed = str(exc)
            self._again_at = time.monotonic() + min(least * 2**self._failures, most)
            self._failures = min(self._failures + 1, 10)
            raise
        self._failures = 0

    def _request(self) -> httpx2.Request:
        """Build the request of RFC 6749, section 6, to the address in the stored login. Raises `LoginNeeded`."""
        context = self._context
        tokens, client, known = context.current_tokens, context.client_info, context.oauth_metadata
        if tokens is None or tokens.refresh_token is None or client is None:
            raise LoginNeeded
        url = str(known.token_endpoint) if known is not None else urljoin(context.server_url, "/token")
        data = {"grant_type": "refresh_token", "refresh_token": tokens.refresh_token, "client_id": client.client_id}
        if context.should_include_resource_param():
            data["resource"] = context.get_resource_url()
        try:
            data, headers = context.prepare_token_auth(data, {"accept-encoding": "identity"})
        except OAuthTokenError as exc:
            raise LoginNeeded from exc
        return httpx2.Request("POST", url, data=data, headers=headers)

    async def _ask(self, request: httpx2.Request) -> OAuthToken:
        """Send the request. Raises `LoginNeeded`, `NotRenewed`."""
        body = bytearray()
        try:
            async with (
                asyncio.timeout(RENEWAL_SECONDS),
                httpx2.AsyncClient(transport=BoundedTransport(self._rules), timeout=RENEWAL_SECONDS) as client,
            ):
                response = await client.send(request, stream=True)
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > MAX_TOKEN_BYTES:
                        raise NotRenewed("the authorization server's answer is too large")
        except AddressRefused as exc:
            raise NotRenewed(f"the authorization server cannot be reached: {exc}") from exc
        except (httpx2.HTTPError, TimeoutError) as exc:
            raise NotRenewed("the authorization server cannot be reached") from exc
        if response.status_code in _REFUSALS:
            raise LoginNeeded
        if response.status_code != 200:
            raise NotRenewed(f"the authorization server answered with HTTP {response.status_code}")
        try:
            tokens = OAuthToken.model_validate_json(bytes(body))
            check_usable(tokens)
        except (ValidationError, OAuthFlowError) as exc:
            raise NotRenewed("the authorization server gave no usable token") from exc
        before = self._context.current_tokens
        if before is not None:  # RFC 6749, 6: an omitted value has not changed
            tokens.scope = tokens.scope or before.scope
            tokens.refresh_token = tokens.refresh_token or before.refresh_token
        return tokens
