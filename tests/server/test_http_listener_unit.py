"""Connections of a listening port, without a server process."""

import asyncio
import socket
from contextlib import ExitStack

import pytest
from starlette.responses import PlainTextResponse

from kernelmcp.config.models import HttpSection
from kernelmcp.http import http_listener
from kernelmcp.http.http_listener import MAX_HALF_SENT, bound, listening

from .support import DEADLINE

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
EXCESS = 20
MORE = MAX_HALF_SENT + EXCESS
ANSWERED, CUT = b"HTTP/1.1 200", b""


async def answers(half: bytes, section: HttpSection) -> list[bytes]:
    """How a burst of connections of one address is answered, oldest first. They have sent `half` of a request before
    one is accepted, and send the rest when a later client, of another address, has been answered."""
    loop = asyncio.get_running_loop()

    async def answer(connection: socket.socket, rest: bytes) -> bytes:
        try:
            await loop.sock_sendall(connection, rest)
            return await loop.sock_recv(connection, len(ANSWERED))
        except (ConnectionResetError, BrokenPipeError):
            return CUT

    with ExitStack() as opened, bound(section, protected=True) as sockets:
        address = sockets[0].getsockname()[:2]
        burst = [opened.enter_context(socket.create_connection(address, DEADLINE)) for _ in range(MORE)]
        other = opened.enter_context(socket.create_connection(address, DEADLINE, ("127.0.0.2", 0)))
        for connection in burst:
            connection.sendall(half)
        for connection in (*burst, other):
            connection.setblocking(False)
        async with asyncio.timeout(DEADLINE), listening(PlainTextResponse("yes"), section, sockets):
            assert await answer(other, REQUEST) == ANSWERED
            return await asyncio.gather(*(answer(connection, REQUEST[len(half) :]) for connection in burst))


@pytest.mark.anyio
async def test_a_burst_of_whole_requests_of_one_address_is_answered() -> None:
    assert await answers(REQUEST, HttpSection(port=0)) == [ANSWERED] * MORE


@pytest.mark.anyio
@pytest.mark.parametrize(("proxies", "cut"), [((), EXCESS), (("127.0.0.0/31",), 0)], ids=["client", "proxy"])
async def test_the_oldest_of_too_many_half_requests_are_cut_off_unless_they_are_a_proxys(
    proxies: tuple[str, ...], cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_listener, "HALF_SENT_SECONDS", 0)
    found = await answers(REQUEST[:10], HttpSection(port=0, trusted_proxies=list(proxies)))
    assert found == [CUT] * cut + [ANSWERED] * (MORE - cut)
