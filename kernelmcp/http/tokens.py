"""Finds the principal of a bearer token: static tokens and, with an issuer, JWTs of an OAuth 2.1 authorization server.

Tokens come from the settings and from a file that is read again when it changes. They are compared in constant time and
kept as hashes only.
"""

import hashlib
import hmac
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from kernelmcp.atomic import read_small
from kernelmcp.config.http_settings import UNSENDABLE, is_token
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ConfigurationError
from kernelmcp.http.token_identity import Identity, Rejected

# How often the token file is checked for changes: a revoked token stays valid for at most this long.
FILE_CHECK_SECONDS = 1.0
MAX_TOKEN_CHARS = 16 * 1024
MAX_FILE_BYTES = 8 * 1024 * 1024
# The holder of `transport_http.auth_token`.
DEFAULT_NAME = "default"

if TYPE_CHECKING:
    from kernelmcp.http.jwt_verifier import Issuer

log = structlog.get_logger(__name__)


class Authenticator:
    """Maps tokens to principals. Raises `ConfigurationError` at once if the settings are inconsistent."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._file: TokenFile | None = None
        self._was_required = False
        self.issuer = _issuer(settings)
        self._check()
        settings.on_change(self._check)

    @property
    def required(self) -> bool:
        """True if a request needs a token. Never turns off while the server runs, whatever a file contains."""
        section = self._settings.config
        configured = section.transport_http.auth_token or section.auth.tokens or section.auth.tokens_file
        self._was_required = self._was_required or bool(configured or self.issuer)
        return self._was_required

    async def authenticate(self, token: str) -> Identity:
        """Identify the holder of a token. Raises `Rejected`."""
        if not token or len(token) > MAX_TOKEN_CHARS:
            raise Rejected("the token is empty or too long")
        digest = _digest(token)
        # Every token is compared, each in constant time: the duration reveals nothing.
        matching = {name for name, known in self._hashes() if hmac.compare_digest(digest, known)}
        if len(matching) > 1:
            raise Rejected(f"the token has several holders: {', '.join(sorted(matching))}")
        if matching:
            return Identity(f"token:{matching.pop()}")
        if self.issuer is None:
            raise Rejected("the token is not known")
        return await self.issuer.verify(token)

    def _check(self) -> None:
        """Raises `ConfigurationError` if the file of the tokens cannot be read, or two holders have one token, because
        they would share their sessions: then changed settings are refused."""
        holders: dict[bytes, str] = {}
        for name, digest in self._hashes():
            if (other := holders.setdefault(digest, name)) != name:
                raise ConfigurationError(f"auth: {other} and {name} have the same token", "Give each one of its own.")

    def _hashes(self) -> list[tuple[str, bytes]]:
        section = self._settings.config
        found = [(name, _digest(token.get_secret_value())) for name, token in section.auth.tokens.items()]
        if (token := section.transport_http.auth_token) is not None:
            found.append((DEFAULT_NAME, _digest(token.get_secret_value())))
        path = section.auth.tokens_file
        if path is None:
            return found
        if self._file is None or self._file.path != path:
            self._file = TokenFile(path)
        return [*found, *self._file.read()]


class TokenFile:
    """The tokens in a file. If the file becomes unreadable, its last good content stays valid, and the log says so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checked = time.monotonic()
        self._content = self._read()
        self._tokens = list(self._parse())

    def read(self) -> list[tuple[str, bytes]]:
        if time.monotonic() - self._checked >= FILE_CHECK_SECONDS:
            self._checked = time.monotonic()
            try:
                # Not by its time: a disk may give two versions the same time, and a removed token would stay valid.
                if (content := self._read()) != self._content:
                    self._content = content
                    self._tokens = list(self._parse())
                    log.info("the tokens were reloaded", file=str(self.path), tokens=len(self._tokens))
            except ConfigurationError as exc:
                log.error("the tokens could not be reloaded; the old ones stay valid", error=exc.message)
        return self._tokens

    def _read(self) -> bytes:
        try:
            return read_small(self.path, MAX_FILE_BYTES)
        except OSError as exc:
            raise ConfigurationError(
                f"{self.path.absolute()}: cannot be read: {exc.strerror}", "See auth.tokens_file."
            ) from exc

    def _parse(self) -> Iterator[tuple[str, bytes]]:
        try:
            values = tomllib.loads(self._content.decode())
        except ValueError as exc:
            # Not the parser's message: it may quote a token.
            raise ConfigurationError(
                f"{self.path}: cannot be read as TOML ({type(exc).__name__})", 'Each line is: name = "token"'
            ) from exc
        for name, token in values.items():
            if not isinstance(token, str) or not token:
                raise ConfigurationError(f"{self.path}: {name}: must be a string", 'Each line is: name = "token"')
            if not is_token(token):
                raise ConfigurationError(f"{self.path}: {name}: {UNSENDABLE}", 'Each line is: name = "token"')
            if not name.strip():
                raise ConfigurationError(f"{self.path}: a token has no name", 'Each line is: name = "token"')
            yield name, _digest(token)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _issuer(settings: Settings) -> "Issuer | None":
    section = settings.config.auth
    if section.issuer is None:
        return None
    audience = section.audience or section.resource_url
    if audience is None:
        raise ConfigurationError(
            "auth.issuer is set, but neither auth.audience nor auth.resource_url",
            "Set auth.resource_url to the URL of this server: a token for another server must not open this one.",
        )
    from kernelmcp.http.jwt_verifier import Issuer

    return Issuer(section.issuer, audience, section.jwks_url, lambda: settings.config.auth.algorithms)
