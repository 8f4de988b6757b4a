"""Configured headers for requests to named hosts: the guest uses secrets that it never sees.

A secret may come from an environment variable of the server (`${NAME}`). No error of this package contains a value.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote

from kernelmcp_kernel.network.allowed_hosts import Address, parse_host
from kernelmcp_kernel.network.request import Headers, Url

REDACTED = b"[redacted]"

# A shorter value is not a secret (a version, a language), and redacting it would damage responses.
_MIN_SECRET_CHARS = 8

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")


class Credentials:
    """[network.headers]. Raises ValueError, without any values in it, for invalid headers."""

    def __init__(self, configured: Mapping[str, Mapping[str, str]], environ: Mapping[str, str]) -> None:
        self._headers: dict[tuple[str | Address, int | None], Headers] = {}
        secrets: set[bytes] = set()
        for key, headers in configured.items():
            expanded = {name: _expand(name, value, environ) for name, value in headers.items()}
            self._headers[_parse_key(key)] = [(name, value) for name, (value, _) in expanded.items()]
            for value, variables in expanded.values():
                secrets.update(form for secret in (value, *variables) for form in _forms(secret))
        # A form may be part of a longer one.
        self._longest_first = sorted(secrets, key=len, reverse=True)

    def headers(self, url: Url) -> Headers:
        """The headers of a request to this URL.

        A host named without a port gets them over https only, so that a guest cannot send them unencrypted.
        """
        headers = list(self._headers.get((url.host, url.port), []))
        if url.scheme == "https":
            headers += self._headers.get((url.host, None), [])
        return headers

    def redact(self, data: bytes) -> bytes:
        """Replace every secret that a server sent back, in plain or in common encodings."""
        for form in self._longest_first:  # one expression for all is ten times slower
            data = data.replace(form, REDACTED)
        return data

    def redact_text(self, text: str) -> str:
        """Replace every secret in a text."""
        return self.redact(text.encode("utf-8", "replace")).decode("utf-8", "replace")


def _parse_key(key: str) -> tuple[str | Address, int | None]:
    host, port = key, None
    if found := re.fullmatch(r"(.+):([0-9]{1,5})", key):
        host, port = found[1], int(found[2])
    return parse_host(host), port


def _expand(name: str, value: str, environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """The value of a header, and the values of the variables in it."""
    variables: list[str] = []

    def variable(found: re.Match[str]) -> str:
        if found[1] not in environ:
            raise ValueError(f"the environment variable {found[1]}, which [network.headers] names, is not set")
        variables.append(environ[found[1]].strip())  # files often end with a line break
        return variables[-1]

    expanded = _VARIABLE.sub(variable, value).strip()
    if not _VALUE.fullmatch(expanded):
        raise ValueError(f"the value of {name} in [network.headers] has characters that no header may have")
    return expanded, variables


def _forms(value: str) -> Iterator[bytes]:
    """Forms in which servers may echo a secret, including the part after a scheme such as `Bearer`."""
    parts = {value, value.partition(" ")[2]}
    if value.lower().startswith("basic "):
        pair = base64.b64decode(value[6:] + "==").decode("latin-1")
        parts |= {pair, pair.partition(":")[2]}
    for part in parts:
        if len(part) >= _MIN_SECRET_CHARS:
            for raw in (part.encode("latin-1"), part.encode()):
                encoded = base64.b64encode(raw)
                yield from (raw, encoded, encoded.rstrip(b"="), repr(raw)[2:-1].encode())
            yield quote(part, safe="").encode()
            yield from (json.dumps(part)[1:-1].encode(), html.escape(part).encode())
