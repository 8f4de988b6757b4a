"""The keys of a JWT issuer: which are used, and for how long when it does not answer."""

from __future__ import annotations

import json
import time
from typing import Any

import anyio
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from kernelmcp.http import jwt_verifier
from kernelmcp.http.jwt_verifier import KEYS_LIFE_SECONDS, Issuer
from kernelmcp.http.token_identity import Rejected

pytestmark = pytest.mark.anyio
KEY, OTHER = (rsa.generate_private_key(65537, 2048) for _ in range(2))


def jwk(key: rsa.RSAPrivateKey, **fields: str) -> dict[str, Any]:
    return {**json.loads(RSAAlgorithm.to_jwk(key.public_key())), **fields}


def token(kid: str | None, key: rsa.RSAPrivateKey = KEY) -> str:
    claims = {"iss": "https://i", "aud": "us", "sub": "dave", "exp": 2**40}
    return jwt.encode(claims, key, "RS256", None if kid is None else {"kid": kid})


class Server:
    """What the issuer answers, once it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *keys: dict[str, Any]) -> None:
        self.keys = list(keys)
        self.asked = 0
        self.answers = anyio.Event()
        self.answers.set()
        monkeypatch.setattr(jwt_verifier, "_get", self.get)

    async def get(self, *_: object) -> dict[str, Any]:
        self.asked += 1
        await self.answers.wait()
        return {"keys": self.keys}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch, jwk(KEY, kid="k1"))


@pytest.fixture
def issuer() -> Issuer:
    return Issuer("https://i", "us", "https://i/keys", lambda: ("RS256",))


async def old_keys(issuer: Issuer, lives: float) -> None:
    """It has fetched them that many of their lives ago."""
    await issuer.verify(token("k1"))
    issuer._fetched = issuer._tried = time.monotonic() - lives * KEYS_LIFE_SECONDS


async def test_while_an_issuer_is_silent_its_keys_are_used_and_asked_for_in_the_background(
    server: Server, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwt_verifier, "PATIENCE_SECONDS", 0.1)
    await old_keys(issuer, 1.5)
    server.answers = anyio.Event()
    server.keys = [jwk(OTHER, kid="k2")]
    with anyio.fail_after(10):
        for _ in range(3):
            assert (await issuer.verify(token("k1"))).principal == "oauth:https://i:dave"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(issuer.verify, token("k2", OTHER))
            await anyio.wait_all_tasks_blocked()
            assert server.asked == 2, "one request at a time, which who needs its answer waits for"
            server.answers.set()
        with pytest.raises(Rejected, match="not one of the issuer's"):
            await issuer.verify(token("k1"))
    assert server.asked == 2


async def test_a_token_without_an_id_asks_for_no_key_that_is_there(server: Server, issuer: Issuer) -> None:
    await old_keys(issuer, 0.5)
    server.answers = anyio.Event()
    with anyio.fail_after(5):
        assert (await issuer.verify(token(None))).principal == "oauth:https://i:dave"
    assert server.asked == 1


async def test_a_key_that_was_withdrawn_is_refused_after_its_life_if_the_issuer_answers(
    server: Server, issuer: Issuer
) -> None:
    await old_keys(issuer, 1.5)
    server.keys = [jwk(OTHER, kid="k2")]
    with pytest.raises(Rejected, match="not one of the issuer's"):
        await issuer.verify(token("k1"))


@pytest.mark.parametrize(("kid", "lives"), [("k2", 0.5), ("k1", 2.5)])
async def test_a_token_whose_key_an_issuer_must_say_is_refused_when_it_takes_too_long(
    kid: str, lives: float, server: Server, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old_keys(issuer, lives)
    server.answers = anyio.Event()
    monkeypatch.setattr(jwt_verifier, "FETCH_TIMEOUT_SECONDS", 0.2)
    with anyio.fail_after(10), pytest.raises(Rejected, match="not one of the issuer's"):
        await issuer.verify(token(kid))


@pytest.mark.parametrize("kids", [{}, {"kid": "k1"}], ids=["without ids", "with one id"])
async def test_keys_for_encryption_are_no_signature_keys(kids: dict[str, str], server: Server, issuer: Issuer) -> None:
    server.keys = [jwk(KEY, use="sig", **kids), jwk(OTHER, use="enc", **kids)]
    assert (await issuer.verify(token(kids.get("kid")))).principal == "oauth:https://i:dave"
    with pytest.raises(Rejected):
        await issuer.verify(token(kids.get("kid"), OTHER))
