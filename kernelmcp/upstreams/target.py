"""Where an upstream is, with the values of `${NAME}`: made for one connection, and kept nowhere; and what an upstream
says, without them.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelmcp.config.expansion import ORDINARY, expanded, variables_in
from kernelmcp.config.upstreams import UpstreamSettings
from kernelmcp.output.sanitize import as_dict, as_list
from kernelmcp.upstreams.catalogue import CallResult

# Shorter ones are words that stand anywhere.
_MIN_SECRET_CHARS = 6
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


def without_secrets(text: str, settings: UpstreamSettings, environ: Mapping[str, str]) -> str:
    """What an upstream says of an error, with names in the place of the values that it was given: servers like to say
    which token was refused. A guest reads it, and so does a log."""
    values = {value: name for name, value in _given(settings, environ) if len(value) >= _MIN_SECRET_CHARS}
    for value in sorted(values, key=len, reverse=True):  # one may contain another
        text = text.replace(value, f"({values[value]})")
    return text


def error_without_secrets(result: CallResult, settings: UpstreamSettings, environ: Mapping[str, str]) -> CallResult:
    """The same of an error that is a result: of its parts that are text."""
    if result.value is None:
        return result
    said: list[dict[str, Any]] = []
    for block in map(as_dict, as_list(result.value.get("content"))):
        text: Any = block.get("text")
        said.append({**block, "text": without_secrets(text, settings, environ)} if isinstance(text, str) else block)
    return replace(result, value={**result.value, "content": said})


def _given(settings: UpstreamSettings, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The values of a server's environment, its headers, and the variables that they name, each with what it is."""
    hidden = [(name, value.get_secret_value()) for name, value in (*settings.env.items(), *settings.headers.items())]
    for name, value in hidden:
        try:
            whole = expanded(value, environ).strip()
        except ValueError:
            continue  # then nobody was given it
        yield name, whole
        yield name, whole.rpartition(" ")[2]  # `Bearer TOKEN`
    open_texts = (settings.command, settings.cwd, settings.url, *settings.args)
    for text in (*(value for _, value in hidden), *open_texts):
        for name in variables_in(text or ""):
            if name not in ORDINARY:
                yield name, environ.get(name, "")


def _from_home(path: str) -> str:
    return str(Path(path).expanduser()) if path.startswith("~") else path
