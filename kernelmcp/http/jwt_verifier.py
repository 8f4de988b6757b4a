"""Verifies the JWTs of one OAuth 2.1 authorization server: fetches its keys, checks signature, issuer, audience and
times.

Must not know static tokens or requests.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import httpx2
import jwt
import structlog

from kernelmcp.http.token_identity import Identity, Rejected

# An unknown key id makes us ask the issuer again, but at most this often: anybody can invent an id.
REFETCH_SECONDS = 30.0
# How long keys are trusted without a new request: a withdrawn key stays valid for at most this long, or twice as long
# while the issuer does not answer.
KEYS_LIFE_SECONDS = 3600.0
# For all documents together. Less than `REFETCH_SECONDS`, so that we ask once at a time.
FETCH_TIMEOUT_SECONDS = 10.0
# How long a token waits for the issuer if its key may be used without an answer.
PATIENCE_SECONDS = 1.0
MAX_DOCUMENT_BYTES = 256 * 1024
# OpenID Connect Core allows 255.
MAX_SUBJECT_CHARS = 1024
# Tolerance for clock differences.
LEEWAY_SECONDS = 30
# Documents that contain `jwks_uri`: OpenID Connect Discovery, and RFC 8414.
OPENID, OAUTH = "/.well-known/openid-configuration", "/.well-known/oauth-authorization-server"

# Access tokens (RFC 9068), and JWTs without a specific type. The same keys sign others for other purposes.
_TYPES = ("jwt", "at+jwt")
# What a key of this type may be for; those of other types have one algorithm each.
_RSA = {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
# Errors that an invalid document may cause.
_NO_DOCUMENT = (ValueError, TypeError, AttributeError, RecursionError)

log = structlog.get_logger(__name__)


class Issuer:
    """One authorization server. `algorithms()`: those that are accepted now."""

    def __init__(
        self, issuer: str, audience: str, jwks_url: str | None, algorithms: Callable[[], Sequence[str]]
    ) -> None:
        self.issuer = issuer
        self._audience = audience
        self._jwks_url = jwks_url
        self._algorithms = algorithms
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched = -KEYS_LIFE_SECONDS
        self._tried = -REFETCH_SECONDS
        self._refetching: asyncio.Task[None] | None = None

    async def verify(self, token: str) -> Identity:
        """Identify the holder of a token. Raises `Rejected`."""
        try:
            header = jwt.get_unverified_header(token)
            if str(header.get("typ", "JWT")).lower().removeprefix("application/") not in _TYPES:
                raise Rejected("the JWT is not an access token")
            key = await self._key(header.get("kid"))
            claims = jwt.decode(
                token,
                key=key.key,
                algorithms=self._algorithms_for(key),
                issuer=self.issuer,
                audience=self._audience,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, RecursionError) as exc:
            raise Rejected(f"the JWT is not valid: {exc}") from exc
        return Identity(f"oauth:{self.issuer}:{_subject(claims)}", _scopes(claims))

    def _algorithms_for(self, key: jwt.PyJWK) -> list[str]:
        """The algorithm that the issuer publishes with the key, or those of its type: the token's own claim does not
        count."""
        allowed = {key.algorithm_name}
        if key.key_type == "RSA" and not key._jwk_data.get("alg"):  # pyright: ignore[reportPrivateUsage]
            allowed = _RSA  # PyJWT says RS256
        return [name for name in self._algorithms() if name in allowed and not name.startswith("HS") and name != "none"]

    async def _key(self, kid: str | None) -> jwt.PyJWK:
        if not self._is_known(kid, KEYS_LIFE_SECONDS) and time.monotonic() - self._tried >= REFETCH_SECONDS:
            self._tried = time.monotonic()
            self._refetching = asyncio.create_task(self._refetch())
        asked = self._refetching
        if not self._is_known(kid, KEYS_LIFE_SECONDS) and asked is not None and not asked.done():
            patience = PATIENCE_SECONDS if self._is_known(kid, 2 * KEYS_LIFE_SECONDS) else None
            await asyncio.wait([asked], timeout=patience)  # a client that goes does not end it
        key = self._find(kid)
        if key is None or time.monotonic() - self._fetched > 2 * KEYS_LIFE_SECONDS:
            raise Rejected("the JWT's key is not one of the issuer's")
        return key

    def _find(self, kid: str | None) -> jwt.PyJWK | None:
        """A token without an id means the only key."""
        if kid is None and kid not in self._keys and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    def _is_known(self, kid: str | None, life_seconds: float) -> bool:
        return self._find(kid) is not None and time.monotonic() - self._fetched <= life_seconds

    async def _refetch(self) -> None:
        """Fetch the keys again. Keeps the old ones if the issuer does not answer."""
        try:
            async with (
                asyncio.timeout(FETCH_TIMEOUT_SECONDS),
                httpx2.AsyncClient(timeout=FETCH_TIMEOUT_SECONDS, follow_redirects=False) as client,
            ):
                url = self._jwks_url or await self._discover(client)
                document = await _get(client, url)
            keys = jwt.PyJWKSet.from_dict(document).keys
        except (TimeoutError, httpx2.HTTPError, httpx2.InvalidURL, jwt.PyJWTError, LookupError, *_NO_DOCUMENT) as exc:
            log.error(
                "the issuer's keys could not be fetched", issuer=self.issuer, error=f"{type(exc).__name__}: {exc}"
            )
            return
        self._keys = {key.key_id: key for key in keys if key.public_key_use in (None, "sig")}
        self._fetched = time.monotonic()

    async def _discover(self, client: httpx2.AsyncClient) -> str:
        for url in (self.issuer.rstrip("/") + OPENID, _with_path(self.issuer, OAUTH)):
            try:
                document = await _get(client, url)
            except (httpx2.HTTPError, *_NO_DOCUMENT):
                continue
            if document.get("issuer") == self.issuer:
                self._jwks_url = str(document["jwks_uri"])
                return self._jwks_url
        raise ValueError("no metadata says where the keys are; set auth.jwks_url")


async def _get(client: httpx2.AsyncClient, url: str) -> dict[str, Any]:
    async with client.stream("GET", url) as response:
        response.raise_for_status()
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_DOCUMENT_BYTES:
                raise ValueError("the document is too long")
    document: Any = httpx2.Response(200, content=body).json()
    if not isinstance(document, dict):
        raise ValueError("the document is not an object")
    return cast("dict[str, Any]", document)


def _with_path(issuer: str, well_known: str) -> str:
    """RFC 8414: the well-known part is between the host and the issuer's own path."""
    url = httpx2.URL(issuer)
    return str(url.copy_with(path=well_known + url.path.rstrip("/")))


def _subject(claims: dict[str, Any]) -> str:
    """The subject of a token. Raises `Rejected` if there is none, because such tokens would all share one principal,
    and for text that a log or a terminal would not show unchanged."""
    subject = claims["sub"]
    if isinstance(subject, str) and subject.strip() and len(subject) <= MAX_SUBJECT_CHARS and subject.isprintable():
        return subject
    raise Rejected("the JWT has no usable sub")


def _scopes(claims: dict[str, Any]) -> frozenset[str]:
    """The scopes. `scope` is a text with spaces (RFC 9068); some issuers send a list, or call it `scp`.

    Raises `Rejected`."""
    found: Any = claims.get("scope", claims.get("scp", ""))
    if not isinstance(found, str | list):
        raise Rejected("the JWT's scope is neither a string nor a list")
    return frozenset(found.split() if isinstance(found, str) else map(str, cast("list[object]", found)))
