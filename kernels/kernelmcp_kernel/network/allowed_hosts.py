"""The hosts and addresses that the guest's requests may reach.

A name must be in the list, and must resolve to a public address, or to one that is itself in the list. So neither a
name server nor a wildcard can turn a permission for the internet into one for this machine or its network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

DEFAULT_PORTS = frozenset({80, 443})

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
# The last label must not be a number in any notation: resolvers treat 2130706433, 0x7f.1 and 127.1 as addresses.
_NAME = re.compile(rf"(?=.{{1,253}}\Z)(?:{_LABEL}\.)*(?!(?:0x[0-9a-f]*|[0-9]+)\Z){_LABEL}")
_HOST_AND_PORT = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]+)(?::([0-9]{1,5}))?")

# Special addresses that `is_global` treats as ordinary ones, at least in some versions of Python.
_NOT_PUBLIC = (
    IPv4Network("192.0.0.0/24"),  # IETF protocol assignments; Oracle's metadata service
    IPv4Network("168.63.129.16/32"),  # Azure's metadata and name service
    IPv4Network("192.88.99.0/24"),  # 6to4 relays
)
_UNICAST = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = (
    IPv6Network("2001::/23"),  # Teredo, ORCHID and other protocol assignments; Teredo embeds an IPv4 address
    IPv6Network("2001:db8::/32"),
    IPv6Network("2002::/16"),  # 6to4 embeds an IPv4 address
    IPv6Network("3fff::/20"),
)
_NAT64 = IPv6Network("64:ff9b::/96")


def parse_host(text: str) -> str | Address:
    """A host of a URL or of the list: an address (IPv6 in brackets), or a name in lower case without a trailing dot.

    Raises ValueError for anything else, such as an IPv4 address that is not four decimal numbers.
    """
    host = text.lower()
    if host.startswith("["):
        return IPv6Address(host[1:-1])
    host = host.removesuffix(".")
    try:
        return IPv4Address(host)
    except ValueError:
        if not _NAME.fullmatch(host):
            raise ValueError(f"{text!r} is not a host name") from None
        return host


def is_public(address: Address) -> bool:
    """Return whether an address is public: not private, loopback, link-local, carrier's, multicast or metadata."""
    if isinstance(address, IPv4Address):
        special = address.is_multicast or address.is_reserved or any(address in net for net in _NOT_PUBLIC)
        return address.is_global and not special
    if address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
    # IPv4-mapped and other embedding forms are outside 2000::/3.
    return address in _UNICAST and address.is_global and not any(address in net for net in _NOT_PUBLIC_6)


@dataclass(frozen=True)
class _Entry:
    host: str | Address
    subdomains: bool
    ports: frozenset[int]

    def covers(self, host: str | Address, port: int) -> bool:
        if port not in self.ports:
            return False
        if self.subdomains:
            return isinstance(host, str) and host.endswith(f".{self.host}")
        return host == self.host


def _parse_entry(text: str) -> _Entry:
    plain = text.strip().lower()
    subdomains = plain.startswith("*.")
    found = _HOST_AND_PORT.fullmatch(plain.removeprefix("*."))
    if found is None:
        raise ValueError(f"{text!r} is not a host, like example.org, *.example.org, 10.0.0.5:8080 or [fd00::5]")
    host = parse_host(found[1])
    if subdomains and not isinstance(host, str):
        raise ValueError(f"{text!r}: an address has no subdomains")
    return _Entry(host, subdomains, frozenset({int(found[2])}) if found[2] else DEFAULT_PORTS)


class AllowList:
    """The hosts of [network] allow_hosts. Raises ValueError for an entry that is not a host."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries = [_parse_entry(entry) for entry in entries]

    def permits(self, host: str | Address, port: int) -> bool:
        """Return whether a request may name this host and port."""
        return any(entry.covers(host, port) for entry in self._entries)

    def permits_address(self, host: str | Address, address: Address, port: int) -> bool:
        """Return whether a request to this permitted host may go to this address."""
        if is_public(address) or self.permits(address, port):
            return True
        return host == "localhost" and address.is_loopback  # no name server may define it


def parse_address(text: str) -> Address:
    """An address from a resolver, perhaps with a zone (fe80::1%eth0). Raises ValueError."""
    return ip_address(text.partition("%")[0])
