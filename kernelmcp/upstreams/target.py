"""Where an upstream is, with the values of `${NAME}`: made for one connection, and kept nowhere."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelmcp.config.expansion import expanded
from kernelmcp.config.upstreams import UpstreamSettings

# As httpx2 would say it, but with the value.
_HEADER_VALUE = re.compile(r"[\x20-\x7e\x80-\xff\t]*")


@dataclass(frozen=True, repr=False)
class Target:
    command: str
    args: list[str]
    env: dict[str, str]
    cwd: str
    url: str
    headers: dict[str, str]


def target_of(settings: UpstreamSettings, environ: Mapping[str, str]) -> Target:
    """Raises ValueError, a clause for a person without a value."""

    def of(text: str | None) -> str:
        return expanded(text or "", environ)

    headers = {name: of(value.get_secret_value()).strip() for name, value in settings.headers.items()}
    for name, value in headers.items():
        if not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"the value of the header {name} has characters that no header may have")
    url = of(settings.url).strip()
    if settings.url is not None and not re.match(r"https?://[^\s/]", url, re.IGNORECASE):
        raise ValueError("its url does not begin with http:// or https:// and a host")
    return Target(
        command=_from_home(of(settings.command)),
        args=[of(argument) for argument in settings.args],
        env={name: of(value.get_secret_value()) for name, value in settings.env.items()},
        cwd=_from_home(of(settings.cwd)) or str(Path.home()),
        url=url,
        headers=headers,
    )


def identity_of(settings: UpstreamSettings) -> str:
    """The same for two settings that lead to the same server. Without secrets, and not to be read back."""
    said = [settings.command, settings.args, settings.cwd, settings.url, settings.transport]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _from_home(path: str) -> str:
    return str(Path(path).expanduser()) if path.startswith("~") else path
