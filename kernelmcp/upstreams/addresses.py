"""The addresses to which connections to upstreams, and to their login servers, may lead.

A name is looked up once, its addresses are checked, and the connection goes to one of these. So the owner of a public
name cannot redirect a connection to this machine, its network or a cloud's metadata service, whenever the name's
addresses change. A private address, or a name that the public DNS does not have, is allowed if the user configured it.
"""

import socket
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import anyio
import anyio.to_thread
import httpx2

Address = IPv4Address | IPv6Address

# Names below these are never in the public DNS: RFC 6761, RFC 6762 (appendix G), RFC 8375, ICANN's .internal.
_LOCAL_DOMAINS = (
    "localhost", "local", "internal", "home.arpa", "test", "lan", "home", "corp", "intranet", "private",
)  # fmt: skip
# Special addresses that `is_global` reports as public, at least in some versions of Python.
_SPECIAL_4 = (
    IPv4Network("192.0.0.0/24"),  # used by protocols; Oracle's metadata service
    IPv4Network("168.63.129.16/32"),  # Azure's metadata and name service
    IPv4Network("192.88.99.0/24"),  # 6to4 relays
)
_UNICAST = IPv6Network("2000::/3")
_SPECIAL_6 = (
    IPv6Network("2001::/23"),  # Teredo, ORCHID and other protocols; Teredo embeds an IPv4 address
    IPv6Network("2001:db8::/32"),
    IPv6Network("2002::/16"),  # 6to4 embeds an IPv4 address
    IPv6Network("3fff::/20"),
)
_NAT64 = IPv6Network("64:ff9b::/96")
# Concurrent look-ups of one upstream. Other upstreams have their own threads, in case its name server answers late.
_LOOK_UPS = 4


class AddressRefused(httpx2.ConnectError):
    """A name leads to addresses that are not allowed. The text is a clause for a person, without the address."""


def is_public(address: Address) -> bool:
    """True if it belongs to the public internet: not private, loopback, link-local, carrier-grade NAT, multicast or
    metadata."""
    if isinstance(address, IPv4Address):
        special = address.is_multicast or address.is_reserved or any(address in net for net in _SPECIAL_4)
        return address.is_global and not special
    if address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
    # IPv4-mapped addresses and other embedding forms lie outside of 2000::/3.
    return address in _UNICAST and address.is_global and not any(address in net for net in _SPECIAL_6)


@dataclass(frozen=True)
class AddressRules:
    """The addresses that may be reached for one upstream."""

    url: str
    """As configured by the user."""
    allow_private: bool
    """True if every name may lead to private addresses."""

    @cached_property
    def _limiter(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(_LOOK_UPS)

    async def permitted(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host to connect to, best first. Raises `AddressRefused`, and OSError or
        UnicodeError if it has none."""
        host = host.lower().removesuffix(".")
        literal = _literal(host)
        found = [host] if literal is not None else await self._looked_up(host, port)
        if permitted := [text for text in found if self._permits(host, _parsed(text))]:
            return permitted
        where = "it is" if literal is not None else "its name leads to"
        raise AddressRefused(
            f"{where} an address that is not public; if that is intended, set private_addresses = true for this server"
        )

    def _permits(self, host: str, address: Address) -> bool:
        if self.allow_private or is_public(address):
            return True
        configured = httpx2.URL(self.url).raw_host.decode("ascii").lower().removesuffix(".")
        if host == configured:
            return _is_local(host)
        # A login server may use another port of this machine: 127.0.0.1 where the user configured localhost.
        return address.is_loopback and _is_loopback(host) and _is_loopback(configured)

    async def _looked_up(self, name: str, port: int) -> list[str]:
        def look_up() -> list[str]:
            found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))

        return await anyio.to_thread.run_sync(look_up, abandon_on_cancel=True, limiter=self._limiter)


def _literal(host: str) -> Address | None:
    try:
        return _parsed(host)
    except ValueError:
        return None


def _parsed(text: str) -> Address:
    """Parse an address that may have a zone (fe80::1%eth0). Raises ValueError."""
    return ip_address(text.partition("%")[0])


def _is_local(host: str) -> bool:
    """True if it is an address, or a name that only this machine and its network can know."""
    if _literal(host) is not None or "." not in host:
        return True
    return host.endswith(tuple(f".{domain}" for domain in _LOCAL_DOMAINS))


def _is_loopback(host: str) -> bool:
    literal = _literal(host)
    return host == "localhost" if literal is None else literal.is_loopback
