"""Validates the hosts and headers in [network] when the settings are read, not at a guest's first request.

The kernel process reads the same texts again (kernelmcp_kernel/network), and decides.
"""

import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address

_LABELS = r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(\*\.)?({_LABELS}|\[[0-9a-f:.]+\])(?::([0-9]{{1,5}}))?", re.IGNORECASE | re.ASCII)
_NUMBER = re.compile(r"(?:.*\.)?(?:0x[0-9a-f]*|[0-9]+)", re.IGNORECASE | re.ASCII)
# RFC 1035: a full name, with its dots.
_MAX_NAME_CHARS = 253
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|[^\x00-\xff]")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# A secret must not change the framing of a request.
_FRAMING = frozenset({"connection", "content-length", "host", "transfer-encoding", "upgrade"})


def check_host(text: str) -> str:
    """The host, unchanged. Raises ValueError with examples of valid ones."""
    found = _HOST.fullmatch(text)
    examples = "such as example.org, *.example.org, 10.0.0.5:8080 or [fd00::5]:8080"
    if found is None or (found[3] and not 0 < int(found[3]) < 65536):
        raise ValueError(f"{text!r} is not a host, {examples}; omit scheme and path, and write other letters as xn--")
    if len(found[2]) > _MAX_NAME_CHARS:
        raise ValueError(f"{text[:40]!r}... is longer than the {_MAX_NAME_CHARS} characters that a name may have")
    try:
        is_address = _is_address(found[2])
    except ValueError:
        raise ValueError(f"{text!r} is not an address, {examples}") from None
    if is_address and found[1]:
        raise ValueError(f"{text!r}: an address has no subdomains; give the address alone, {examples}")
    return text


def _is_address(host: str) -> bool:
    """True if it is an address and not a name. Raises ValueError for text that only looks like an address."""
    if host.startswith("["):
        IPv6Address(host[1:-1])
        return True
    if _NUMBER.fullmatch(host):
        IPv4Address(host)
        return True
    return False


def check_headers(host: str, headers: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Raises ValueError, whose text never contains a value."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or name.lower() in _FRAMING:
            raise ValueError(f"{name!r} of {host} is not a header that can be set")
        if _CONTROL.search(value):
            raise ValueError(f"the value of {name} of {host} has characters that no header may have")
        for variable in _VARIABLE.findall(value):
            if variable not in environ:
                raise ValueError(f"{name} of {host} names the environment variable {variable}: it is not set")
            if _CONTROL.search(environ[variable].strip()):
                raise ValueError(f"{name} of {host}: {variable} has characters that no header may have")
