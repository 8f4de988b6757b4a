"""A stored login, for all servers that share a home.

    home/upstreams/logins/NAME.json    tokens and the data to renew them, mode 0600, for one address
    home/upstreams/logins/NAME.lock    held during a renewal

An authorization server may treat a second use of a refresh token as theft: each renewal holds the lock, and first
checks whether another server has renewed it.
"""

import asyncio
import fcntl
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from mcp.client.auth import OAuthFlowError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import BaseModel, ValidationError

from kernelmcp.atomic import Stamp, read_small, replace_text, stamp_of
from kernelmcp.output.sanitize import as_dict

Model = TypeVar("Model", bound=BaseModel)
# Time limit and poll interval in seconds while another server renews the login.
LOCK_SECONDS, LOCK_POLL_SECONDS = 60.0, 0.05


class LoginNeeded(Exception):
    """The server wants a person to log in."""


class NotRenewed(Exception):
    """The text is a clause for a person."""


class LoginFile:
    """A stored login, and mcp's TokenStorage. It is for one address: another one never gets these tokens."""

    def __init__(self, file: Path, url: str, *, anew: bool = False) -> None:
        """`anew`: ignore the stored login, because its registration has another redirect address."""
        self._file = file
        self._url = url
        self._said: dict[str, Any] = {}
        self._context: OAuthContext | None = None
        self._unwritten: Stamp | None = None
        """The file's stamp, if newer tokens than its own could not be written."""
        if not anew:
            self.read()

    @property
    def is_empty(self) -> bool:
        return "tokens" not in self._said

    def has(self, tokens: OAuthToken | None) -> bool:
        """Whether it is still the login that these tokens were renewed with."""
        found = self._get(OAuthToken, "tokens")
        return found is not None and tokens is not None and found.refresh_token == tokens.refresh_token

    @property
    def name(self) -> str:
        return self._file.stem

    @property
    def secrets(self) -> list[str]:
        """What a server that was given it could quote."""
        tokens = as_dict(self._said.get("tokens"))
        return [value for key in ("access_token", "refresh_token") if isinstance(value := tokens.get(key), str)]

    def read(self) -> None:
        """Read the changes of another server or a person. An unreadable file changes nothing; without a file, there is
        no login. If tokens could not be written, the file still has the ones before them, and is replaced."""
        if self._unwritten == stamp_of(self._file):
            with suppress(OSError):
                self._write()
            return
        try:
            said = as_dict(json.loads(read_small(self._file)))
        except FileNotFoundError:
            said = {}
        except (OSError, ValueError, RecursionError):
            return
        self._said = said if said.get("url") == self._url else {}
        if self._context is not None:
            self.fill(self._context)

    def fill(self, context: OAuthContext) -> None:
        """Act as its storage, and add data that mcp's storage lacks: when tokens expire, and where they are renewed."""
        self._context = context
        context.oauth_metadata = self._get(OAuthMetadata, "metadata")
        context.protected_resource_metadata = self._get(ProtectedResourceMetadata, "resource")
        context.current_tokens = self._get(OAuthToken, "tokens")
        context.client_info = self._get(OAuthClientInformationFull, "client")
        expiry: Any = self._said.get("expires_at")
        context.token_expiry_time = float(expiry) if isinstance(expiry, int | float) else None

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Lock the file against all other servers. Raises `NotRenewed` if that takes too long."""
        try:
            fd = os.open(self._file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise NotRenewed(f"{self._file.with_suffix('.lock')} cannot be locked: {exc.strerror}") from exc
        try:
            try:
                async with asyncio.timeout(LOCK_SECONDS):
                    while not _try_lock(fd):  # noqa: ASYNC110  # a lock has no event
                        await asyncio.sleep(LOCK_POLL_SECONDS)
            except TimeoutError:
                raise NotRenewed("another server has been renewing it for too long") from None
            yield
        finally:
            os.close(fd)

    async def get_tokens(self) -> OAuthToken | None:
        return self._get(OAuthToken, "tokens")

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store tokens. Raises `OAuthFlowError` if that fails, and for tokens that no request could use."""
        if self._context is not None:
            self.store(tokens, self._context)

    def store(self, tokens: OAuthToken, context: OAuthContext) -> None:
        """The same, for the tokens of this context, which several may share."""
        check_usable(tokens)
        self._said |= {
            "url": self._url,
            "tokens": _dumped(tokens),
            "client": _dumped(context.client_info),
            "expires_at": context.token_expiry_time,
            "metadata": _dumped(context.oauth_metadata),
            "resource": _dumped(context.protected_resource_metadata),
        }
        self._unwritten = stamp_of(self._file)
        try:
            self._write()
        except OSError as exc:
            raise OAuthFlowError(f"the login cannot be stored: {exc.strerror}") from exc

    def _write(self) -> None:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(self._file, json.dumps(self._said))
        self._unwritten = None

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._get(OAuthClientInformationFull, "client")

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._said["client"] = _dumped(client_info)  # written with the tokens: useless without them

    def _get(self, model: type[Model], key: str) -> Model | None:
        try:
            return model.model_validate(self._said[key]) if self._said.get(key) is not None else None
        except ValidationError:
            return None


def check_usable(tokens: OAuthToken) -> None:
    """Raises `OAuthFlowError` if no request could use these tokens."""
    if tokens.expires_in is not None and tokens.expires_in <= 0:
        raise OAuthFlowError("the authorization server gave a token that has already expired")
    if not all(each.isascii() and each.isprintable() for each in (tokens.access_token, tokens.refresh_token or "")):
        raise OAuthFlowError("the authorization server gave a token that no header can carry")


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _dumped(model: BaseModel | None) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)
