"""OAuth for upstreams over HTTP: tokens of a login that a person made, and their renewal in the middle of calls.

    home/upstreams/logins/NAME.json    tokens and what renews them, mode 0600, for one address

The flow itself is mcp's. No login begins here: without usable tokens a request ends in `LoginNeeded`, and `kernelmcp
upstreams login NAME` is what makes some.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, BaseModel, ValidationError

from kernelmcp.atomic import read_small, replace_text

Model = TypeVar("Model", bound=BaseModel)
CLIENT_NAME = "kernelmcp"
# What the redirect address is while nobody logs in: it is sent nowhere.
_NO_REDIRECT = "http://127.0.0.1/callback"


class LoginNeeded(Exception):
    """The server wants a person to log in."""


class LoginFile:
    """mcp's TokenStorage. What it keeps is for one address: another one never gets these tokens."""

    def __init__(self, file: Path, url: str, *, anew: bool = False) -> None:
        """`anew`: what is there is not used, because its registration has another redirect address."""
        self._file = file
        self._url = url
        self._said = {} if anew else self._read()
        self._provider: OAuthClientProvider | None = None

    @property
    def is_empty(self) -> bool:
        return "tokens" not in self._said

    def serve(self, provider: OAuthClientProvider) -> None:
        """Be its storage, with what mcp's storage lacks: when tokens expire, and where they are renewed."""
        self._provider = provider
        context = provider.context
        context.oauth_metadata = self._get(OAuthMetadata, "metadata")
        context.protected_resource_metadata = self._get(ProtectedResourceMetadata, "resource")
        context.current_tokens = self._get(OAuthToken, "tokens")
        context.client_info = self._get(OAuthClientInformationFull, "client")
        expiry: Any = self._said.get("expires_at")
        context.token_expiry_time = float(expiry) if isinstance(expiry, int | float) else None

    async def get_tokens(self) -> OAuthToken | None:
        return self._get(OAuthToken, "tokens")

    async def set_tokens(self, tokens: OAuthToken) -> None:
        if self._provider is None:
            return
        context = self._provider.context
        self._said |= {
            "url": self._url,
            "tokens": _dumped(tokens),
            "expires_at": context.token_expiry_time,
            "metadata": _dumped(context.oauth_metadata),
            "resource": _dumped(context.protected_resource_metadata),
        }
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(self._file, json.dumps(self._said))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._get(OAuthClientInformationFull, "client")

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._said["client"] = _dumped(client_info)  # written with the tokens: without them it is of no use

    def _get(self, model: type[Model], key: str) -> Model | None:
        try:
            return model.model_validate(self._said[key]) if self._said.get(key) is not None else None
        except ValidationError:
            return None

    def _read(self) -> dict[str, Any]:
        try:
            found: Any = json.loads(read_small(self._file))
        except (OSError, ValueError, RecursionError):
            return {}
        said = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        return said if said.get("url") == self._url else {}


class Logins:
    """What people have logged in to."""

    def __init__(self, folder: Path) -> None:
        """`folder`: of all that is kept of upstreams."""
        self._folder = folder / "logins"

    def file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def stamp(self, name: str) -> int:
        """Another one after each login."""
        try:
            return self.file(name).stat().st_mtime_ns
        except OSError:
            return 0

    def authorize(self, name: str, url: str, headers: Mapping[str, str]) -> httpx2.Auth | None:
        """What logs requests in. Nothing where the settings say how: then it is not a matter of a login."""
        if any(header.lower() == "authorization" for header in headers):
            return None
        kept = LoginFile(self.file(name), url)
        if kept.is_empty:
            return _NoLogin()
        provider = provider_for(url, kept, _NO_REDIRECT, _refuse, _refuse)
        return _KeptLogin(provider)


def provider_for(
    url: str,
    kept: LoginFile,
    redirect: str,
    show: Callable[[str], Awaitable[None]],
    wait: Callable[[], Awaitable[AuthorizationCodeResult]],
) -> OAuthClientProvider:
    """mcp's flow. `show` shows a person an address, `wait` waits for what it leads to."""
    about = OAuthClientMetadata(client_name=CLIENT_NAME, redirect_uris=[AnyUrl(redirect)])
    provider = OAuthClientProvider(url, about, kept, show, wait)
    kept.serve(provider)
    return provider


async def _refuse(*_: str) -> NoReturn:
    raise LoginNeeded


class _NoLogin(httpx2.Auth):
    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        response = yield request
        if response.status_code == 401:
            raise LoginNeeded


class _KeptLogin(httpx2.Auth):
    """mcp's flow takes one request at a time, and forgets that it could renew a token that was refused: requests with a
    token that is good pass it by, and a refused token counts as expired."""

    def __init__(self, provider: OAuthClientProvider) -> None:
        self._provider = provider

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        context = self._provider.context
        if context.is_token_valid() and (used := context.current_tokens) is not None:
            request.headers["Authorization"] = f"Bearer {used.access_token}"
            response = yield request
            if not _is_refused(response):
                return
            if context.current_tokens is used:
                context.token_expiry_time = 1.0  # long ago
        flow = self._provider.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                response = yield outgoing
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()


def _is_refused(response: httpx2.Response) -> bool:
    return response.status_code == 401 or (
        response.status_code == 403 and "insufficient_scope" in response.headers.get("www-authenticate", "")
    )


def _dumped(model: BaseModel | None) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)
