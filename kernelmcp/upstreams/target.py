"""The target of an upstream with the values of `${NAME}`, built for one connection and not stored; and the removal of
these values from an upstream's messages."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from kernelmcp.config.expansion import ORDINARY, expanded, variables_in
from kernelmcp.config.upstream_settings import UpstreamSettings
from kernelmcp.upstreams.catalogue import ToolCallResult

# Shorter ones are words that may appear anywhere.
_MIN_SECRET_CHARS = 6
# A string of JSON. One without an end is matched too: else it would be searched from each of its quotes.
_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"?', re.DOTALL)
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
    return remover(settings, environ, tokens)(text)


def remover(settings: UpstreamSettings, environ: Mapping[str, str], tokens: Iterable[str] = ()) -> Callable[[str], str]:
    """`without_secrets` for many texts."""
    given = [*(("login", token) for token in tokens), *_given(settings, environ)]
    values = {value: name for name, value in given if len(value) >= _MIN_SECRET_CHARS}
    ordered = sorted(values, key=len, reverse=True)  # one may contain another

    def without(text: str) -> str:
        for value in ordered:
            text = text.replace(value, f"({values[value]})")
        return text

    return without


def error_without_secrets(result: ToolCallResult, without: Callable[[str], str]) -> ToolCallResult:
    """Apply `without` to all strings of an error result. Blocking."""

    def replaced(string: re.Match[str]) -> str:
        text = string[1]
        if "\\" in text:
            with suppress(ValueError):
                text = json.loads(string[0], strict=False)
        said = without(text)
        return string[0] if said == text else json.dumps(said)

    if result.raw is not None:  # parsed at once, it would stop all other threads for a second
        raw = _STRING.sub(replaced, result.raw.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        return replace(result, raw=raw, size=len(raw))
    return replace(result, value=json.loads(_STRING.sub(replaced, json.dumps(result.value))))


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
