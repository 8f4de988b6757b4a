"""`kernelmcp upstreams import CLIENT`: copies the servers of another program into mcp.toml, and keeps existing entries.

Values that look like secrets are not copied: `${NAME}` replaces them, and the command says which variables to set.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelmcp.atomic import read_small, replace_text
from kernelmcp.commands.terminal import fail, plain
from kernelmcp.commands.toml_values import toml_value
from kernelmcp.config.client_files import path_of, read_file
from kernelmcp.config.load import MAX_FILE_BYTES
from kernelmcp.config.models import Config
from kernelmcp.config.settings import Settings
from kernelmcp.config.upstream_settings import UpstreamSettings
from kernelmcp.errors import ConfigurationError

_SECRET_NAME = re.compile(r"token|key|secret|passw|credential|auth|cookie|(^|[_-])pat($|[_-])|session", re.IGNORECASE)
_SECRET_START = re.compile(r"([spr]k-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|eyJ|ya29\.|hf_|npm_)")
# Long, with both letters and digits, and not a path, address or version.
_RANDOM = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_+=~-]{24,}")
_OPTION = re.compile(r"(--?[A-Za-z][\w-]*)=(.+)", re.DOTALL)
_PASSWORD = re.compile(r"(//[^/:@\s]*:)([^/@\s]+)(@)")
_PARAMETER = re.compile(r"([?&]([^=&#]+)=)([^&#]+)")
_SCHEME = re.compile(r"((?:Bearer|Basic|Token|ApiKey)\s+)(\S.*)", re.IGNORECASE | re.DOTALL)


def main(settings: Settings, client: str, *, dry_run: bool) -> int:
    """Returns status 1 if nothing could be read. Raises `ConfigurationError`."""
    if settings.sources is None:
        raise ConfigurationError("there is no mcp.toml to write", "Name one: --config FILE.")
    file = settings.sources.places[0].path
    problems: list[str] = []
    found = dict(read_file(client, problems))
    for problem in problems:
        fail(plain(problem))
    if not found:
        return fail(f"{path_of(client)} has no servers to import.")
    there = settings.config.upstreams.servers
    wanted: dict[str, str] = {}
    text = "".join(_table(name, server, wanted) for name, server in found.items() if name not in there)
    for name in found:
        if name in there:
            sys.stdout.write(f"{name} is in {file} already and stays unchanged.\n")
    if not text:
        return 0
    if dry_run:
        sys.stdout.write(f"# would add to {file}\n{text}")
    else:
        _append(file, text)
        sys.stdout.write(f"Added {', '.join(name for name in found if name not in there)} to {file}.\n")
    if wanted:
        sys.stdout.write(
            "Secrets were not copied. Set these variables where kernelmcp is started (if a client starts it, in the "
            "`env` of its entry for kernelmcp):\n"
        )
        sys.stdout.writelines(f"  {variable}   {what}\n" for variable, what in wanted.items())
    return 0


def _append(file: Path, text: str) -> None:
    """Append to the file. Raises `ConfigurationError`; then the file is unchanged."""
    try:
        old = read_small(file, MAX_FILE_BYTES).decode("utf-8")
    except FileNotFoundError:
        old = ""
    except (OSError, ValueError) as exc:
        raise ConfigurationError(f"{file} cannot be read: {exc}", "Correct it and try again.") from exc
    new = f"{old.rstrip()}\n{text}".lstrip("\n")
    try:
        Config.model_validate(tomllib.loads(new))
    except (ValueError, ValidationError) as exc:
        raise ConfigurationError(
            f"{file}: the servers cannot be appended, because [upstreams.servers] is not written as tables",
            "Write [upstreams.servers] as tables, or see the lines with --dry-run.",
        ) from exc
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(file, new, mode=file.stat().st_mode & 0o777 if file.exists() else 0o600)
    except OSError as exc:
        raise ConfigurationError(f"{file} cannot be written: {exc.strerror}", "Check its permissions.") from exc


# -- one server -----------------------------------------------------------------------------------------------------


def _table(name: str, server: UpstreamSettings, wanted: dict[str, str]) -> str:
    """The lines of a server in TOML. `wanted` gets the variables that replace secrets."""
    prefix = re.sub(r"\W", "_", name).upper()

    def instead(variable: str, what: str) -> str:
        wanted[variable] = f"{what} of {name}"
        return f"${{{variable}}}"

    def of_argument(argument: str, before: str) -> str:
        option = _OPTION.fullmatch(argument)
        if option is not None and _is_secret(option[1], option[2]):
            return f"{option[1]}={instead(_variable(prefix, option[1]), option[1])}"
        if option is None and (_is_secret("", argument) or (before.startswith("-") and _is_named(before, argument))):
            return instead(_variable(prefix, before if before.startswith("-") else "SECRET"), before or "an argument")
        return of_address(argument)

    def of_address(text: str) -> str:
        text = _PASSWORD.sub(lambda found: f"{found[1]}{instead(f'{prefix}_PASSWORD', 'the password')}{found[3]}", text)

        def of_parameter(found: re.Match[str]) -> str:
            is_secret = _is_secret(found[2], found[3])
            return found[1] + instead(_variable(prefix, found[2]), found[2]) if is_secret else found[0]

        return _PARAMETER.sub(of_parameter, text)

    def of_value(key: str, value: str, variable: str) -> str:
        if not _is_secret(key, value):
            return of_address(value)
        scheme = _SCHEME.fullmatch(value)
        return f"{scheme[1] if scheme else ''}{instead(variable, key)}"

    rows: dict[str, Any] = {}
    if server.command is not None:
        rows["command"] = server.command
        pairs = zip(server.args, ["", *server.args], strict=False)
        rows["args"] = [of_argument(argument, before) for argument, before in pairs]
        rows["env"] = {key: of_value(key, value.get_secret_value(), key) for key, value in server.env.items()}
        rows["cwd"] = server.cwd
    else:
        rows["url"] = of_address(server.url or "")
        rows["type"] = server.type
        rows["headers"] = {
            key: of_value(key, value.get_secret_value(), _variable(prefix, "token" if _is_login(key) else key))
            for key, value in server.headers.items()
        }
    rows["disabled"] = server.disabled
    lines = [f"{key} = {toml_value(value)}" for key, value in rows.items() if value not in (None, {}, [], False)]
    return "\n".join(["", f"[upstreams.servers.{name}]", *lines, ""])


def _is_login(header: str) -> bool:
    return header.lower() == "authorization"


def _is_secret(name: str, value: str) -> bool:
    """Judged by the name, or the form of the value. A value that already names a variable is not a secret."""
    if not value or "${" in value:
        return False
    return _is_named(name, value) or bool(_SECRET_START.match(value) or _RANDOM.fullmatch(value))


def _is_named(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and "${" not in value and not value.startswith(("/", "~", ".", "-"))


def _variable(prefix: str, name: str) -> str:
    return f"{prefix}_{re.sub(r'[^A-Za-z0-9]+', '_', name).strip('_').upper()}"
