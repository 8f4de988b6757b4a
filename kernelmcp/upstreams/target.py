"""The target of an upstream with the values of `${NAME}`, built for one connection and not stored; and the removal of
these values from an upstream's messages."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelmcp.config.expansion import ORDINARY, expanded, variables_in
from kernelmcp.config.upstream_settings import UpstreamSettings
from kernelmcp.output.sanitize import as_dict, as_list
from kernelmcp.upstreams.catalogue import ToolCallResult

# Shorter ones are words that may appear anywhere.
_MIN_SECRET_CHARS = 6
# httpx2 checks this too, but its error contains the value.
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
    """Expand the settings. Raises ValueError, a clause for a person without a value."""

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
    """Equal for two settings that lead to the same server. Contains no secrets, and cannot be reversed."""
    said = [settings.command, settings.args, settings.cwd, settings.url, settings.transport]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def without_secrets(
    text: str, settings: UpstreamSettings, environ: Mapping[str, str], tokens: Iterable[str] = ()
) -> str:
    """Replace the values that an upstream was given by their names in its error text: servers often quote a rejected
    token. Guests and logs see this text. `tokens`: those of a login."""
    given = [*(("login", token) for token in tokens), *_given(settings, environ)]
    values = {value: name for name, value in given if len(value) >= _MIN_SECRET_CHARS}
    for value in sorted(values, key=len, reverse=True):  # one may contain another
        text = text.replace(value, f"({values[value]})")
    return text


def error_without_secrets(result: ToolCallResult, without: Callable[[str], str]) -> ToolCallResult:
    """Apply `without_secrets` to the text parts of an error result."""
    if result.value is None:
        return result
    said: list[dict[str, Any]] = []
    for block in map(as_dict, as_list(result.value.get("content"))):
        text: Any = block.get("text")
        said.append({**block, "text": without(text)} if isinstance(text, str) else block)
    return replace(result, value={**result.value, "content": said})


def _given(settings: UpstreamSettings, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The values of a server's environment, its headers, and the variables that they name, each with its name."""
    hidden = [(name, value.get_secret_value()) for name, value in (*settings.env.items(), *settings.headers.items())]
    for name, value in hidden:
        try:
            whole = expanded(value, environ).strip()
        except ValueError:
            continue  # then no server was given it
        yield name, whole
        yield name, whole.rpartition(" ")[2]  # `Bearer TOKEN`
    open_texts = (settings.command, settings.cwd, settings.url, *settings.args)
    for text in (*(value for _, value in hidden), *open_texts):
        for name in variables_in(text or ""):
            if name not in ORDINARY:
                yield name, environ.get(name, "")


def _from_home(path: str) -> str:
    return str(Path(path).expanduser()) if path.startswith("~") else path
