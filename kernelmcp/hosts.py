"""What may stand in [network]: hosts and headers, checked when the settings are read, not at a guest's first request.

Above: config. Below: nothing. The kernel process reads the same texts again (kernelmcp_kernel/network), and decides.
"""

import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address

_LABELS = r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(\*\.)?({_LABELS}|\[[0-9a-f:.]+\])(?::([0-9]{{1,5}}))?", re.IGNORECASE)
_NUMBER = re.compile(r"(?:.*\.)?(?:0x[0-9a-f]*|[0-9]+)", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|[^\x00-\xff]")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# The framing of a request is not a secret's business.
_FRAMING = frozenset({"connection", "content-length", "host", "transfer-encoding", "upgrade"})


def check_host(text: str) -> str:
    """The host as it was. Raises ValueError with what would do."""
    found = _HOST.fullmatch(text)
    examples = "such as example.org, *.example.org, 10.0.0.5:8080 or [fd00::5]:8080"
    if found is None or (found[3] and not 0 < int(found[3]) < 65536):
        raise ValueError(f"{text!r} is not a host, {examples}; no scheme, no path, letters of a name as xn--")
    try:
        if found[2].startswith("["):
            IPv6Address(found[2][1:-1])
        elif _NUMBER.fullmatch(found[2]):
            IPv4Address(found[2])
    except ValueError:
        raise ValueError(f"{text!r} is not an address, {examples}") from None
    return text


def check_headers(host: str, headers: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Raises ValueError, which never holds a value."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or name.lower() in _FRAMING:
            raise ValueError(f"{name!r} of {host} is not a header that can be set")
        if _CONTROL.search(value):
            raise ValueError(f"the value of {name} of {host} has characters that no header may have")
        for variable in _VARIABLE.findall(value):
            if variable not in environ:
                raise ValueError(f"{name} of {host} names the environment variable {variable}: it is not set")
