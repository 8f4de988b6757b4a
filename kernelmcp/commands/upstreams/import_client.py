"""`kernelmcp upstreams import CLIENT`: copies the servers of another program into mcp.toml, and keeps existing entries.

Values that look like secrets are not copied: `${NAME}` replaces them, and the command says which variables to set. In a
shell's script, some can only stay: it names them.
"""

import errno
import itertools
import json
import os
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from kernelmcp.atomic import read_small, replace_text
from kernelmcp.commands.terminal import fail, plain
from kernelmcp.commands.toml_values import toml_value
from kernelmcp.config.choices import CLIENTS
from kernelmcp.config.client_files import path_of, read_file
from kernelmcp.config.load import MAX_FILE_BYTES
from kernelmcp.config.models import Config
from kernelmcp.config.settings import Settings
from kernelmcp.config.upstream_settings import UpstreamSettings
from kernelmcp.errors import ConfigurationError, is_full

_SECRET_NAME = re.compile(r"token|key|secret|passw|credential|auth|cookie|(^|[_-])pat($|[_-])|session", re.IGNORECASE)
_SECRET_START = re.compile(
    r"([spr]k-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|eyJ|ya29\.|hf_|npm_|bot\d{6,}:)"
)
# Long, with both letters and digits, and not a path, address or version.
_RANDOM = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_+=~-]{24,}")
_OPTION = re.compile(r"(--?[A-Za-z][\w-]*)=(.+)", re.DOTALL)
# A variable or a header, as an argument.
_NAMED = re.compile(r"(([A-Za-z_][\w-]*)(?:=|:\s*(?!//)))(.+)", re.DOTALL)
# Up to the last @, which a user and a password may have too.
_PASSWORD = re.compile(r"(//[^/:\s]*:)([^/@\s]+(?:@[^/@?#\s]+)*)(@)")
# A part of a path, or a user without a password: a key if it is no words, which have hyphens.
_SEGMENT = re.compile(r"(?<=/)(?=[^/?#@]*[0-9])[A-Za-z0-9_+=~:-]{16,}(?=[/?#@]|$)")
_NO_WORDS = re.compile(r"[A-Za-z0-9]{16}|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_PARAMETER = re.compile(r"([?&]([^=&#]+)=)([^&#]+)")
# The argument after this one is a shell's script. Its words, and those that end with a quoted part.
_SCRIPT = re.compile(r"-[a-z]{0,3}c|/c", re.IGNORECASE)
_WORD = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|\\[^\r\n]|[^\s"';&|\\])+""", re.DOTALL)
_QUOTED = re.compile(r"""((?:[\w-]+[=:])?)(["'])((?:\\.|[^"\\])*(?=")|[^']*(?='))\2""", re.DOTALL)
# What a shell replaces, and what begins so.
_SHELLS = re.compile(r"\$(?:\w+|\{[^{}]*\}|\(.*)|[$`].*", re.DOTALL)
_ANY = re.compile("")
_REPLACED = re.compile(r"(\$\{\w+\})")
_SCHEME = re.compile(r"((?:Bearer|Basic|Token|ApiKey)\s+)(\S.*)", re.IGNORECASE | re.DOTALL)


def main(settings: Settings, client: str, *, dry_run: bool) -> int:
    """Returns status 1 if nothing could be read. Raises `ConfigurationError`."""
    if settings.sources is None:
        raise ConfigurationError("there is no mcp.toml to write", "Name one: --config FILE.")
    file = settings.sources.places[0].path
    # `install` has hyphens in its names.
    named = client.replace("-", "_")
    client = named if named in CLIENTS else os.path.abspath(os.path.expanduser(client))
    problems: list[str] = []
    found = dict(read_file(client, problems))
    for problem in problems:
        fail(plain(problem))
    if not found:
        return 1 if problems else fail(f"{path_of(client)} has no servers to import.")
    there = settings.config.upstreams.servers
    wanted = Wanted()
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
    if wanted.variables:
        sys.stdout.write(
            "Secrets were not copied. Set these variables where kernelmcp is started (if a client starts it, in the "
            "`env` of its entry for kernelmcp):\n"
        )
        sys.stdout.writelines(f"  {variable}   {what}\n" for variable, what in wanted.variables.items())
    if wanted.kept:
        sys.stdout.write("These may be secrets, and were copied, because of how their scripts write them:\n")
        sys.stdout.writelines(f"  {what}\n" for what in wanted.kept)
    return 0


def _append(file: Path, text: str) -> None:
    """Append to the file. Raises `ConfigurationError`; then the file is unchanged."""
    try:
        old = read_small(file, MAX_FILE_BYTES).decode("utf-8-sig")
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
        file = file.resolve()  # a link stays
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(file, new, mode=file.stat().st_mode & 0o777 if file.exists() else 0o600)
    except (OSError, RuntimeError) as exc:  # RuntimeError: until Python 3.12, circular links
        why, advice = str(exc), "Check its permissions."
        if isinstance(exc, OSError):
            why = exc.strerror or why
            if is_full(exc):
                advice = "Free disk space."
            elif exc.errno == errno.EROFS:
                advice = "Name another file: --config FILE."
        raise ConfigurationError(f"{file} cannot be written: {why}", advice) from exc


# -- one server -----------------------------------------------------------------------------------------------------


class Wanted:
    """The variables that replace secrets, and what each is for."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.kept: list[str] = []
        """What may be a secret, and was not replaced."""
        self._values: dict[str, str] = {}

    def instead(self, variable: str, value: str, what: str) -> str:
        """What replaces the value: the variable, numbered if it stands for another value already."""
        names = (variable if number == 1 else f"{variable}_{number}" for number in itertools.count(1))
        found = next(name for name in names if self._values.setdefault(name, value) == value)
        self.variables[found] = what
        return f"${{{found}}}"


class _Texts:
    """The texts of one server, without their secrets."""

    def __init__(self, name: str, wanted: Wanted, keeps: re.Pattern[str] | None = None) -> None:
        self._name = name
        self._wanted = wanted
        self._keeps = keeps
        """Values with this in them are not replaced."""
        self._prefix = re.sub(r"\W", "_", name).upper()

    def argument(self, argument: str, before: str) -> str:
        if (option := _OPTION.fullmatch(argument)) is not None:
            return f"{option[1]}={self._of_option(option[1], option[2])}"
        return self._of_option(before if before.startswith("-") and "=" not in before else "", argument)

    def script(self, text: str) -> str:
        """A shell's script: each of its words is an argument. The shell's own variables stay."""
        before = ""

        def of_word(found: re.Match[str]) -> str:
            nonlocal before
            word, option, before = found[0], before, found[0]
            quoted = _QUOTED.fullmatch(word)
            head, quote, inner = quoted.groups() if quoted else ("", "", word)
            plain = shlex.split(word)[0]
            is_literal = plain == head + inner
            keeps = _SHELLS if quote != "'" and _SHELLS.search(word) else None
            if not is_literal and (keeps or "'" in plain):
                keeps = _ANY
            written = _Texts(self._name, self._wanted, keeps).argument(plain, option)
            if written == plain:
                return word
            if is_literal and written.startswith(head):
                return f"{head}{quote}{written[len(head) :]}{quote}"
            return _word(written)

        return _WORD.sub(of_word, text)

    def _of_option(self, option: str, text: str) -> str:
        """The value of an option, or an argument of its own."""
        is_named = bool(option) and _is_named(option, text)
        named = None if is_named else _NAMED.fullmatch(text)
        # Padding of base64, or a token with a colon, is no name with a value.
        if named is not None and named[3].strip("=") and not _SECRET_START.match(named[2]):
            return named[1] + self.value(named[2], named[3], self.variable(named[2]))
        if is_named or _is_secret("", text):
            return self._instead(self.variable(option or "SECRET"), text, option or "an argument")
        return self.address(text)

    def address(self, text: str) -> str:
        def of_password(found: re.Match[str]) -> str:
            return f"{found[1]}{self._instead(self.variable('PASSWORD'), found[2], 'the password')}{found[3]}"

        def of_parameter(found: re.Match[str]) -> str:
            is_secret = _is_secret(found[2], found[3])
            return found[1] + self._instead(self.variable(found[2]), found[3], found[2]) if is_secret else found[0]

        def of_segment(found: re.Match[str]) -> str:
            is_secret = _SECRET_START.match(found[0]) or (_RANDOM.fullmatch(found[0]) and _NO_WORDS.search(found[0]))
            return self._instead(self.variable("KEY"), found[0], "the key in the address") if is_secret else found[0]

        text = _PARAMETER.sub(of_parameter, _PASSWORD.sub(of_password, text))
        return _SEGMENT.sub(of_segment, text) if "://" in text else text

    def value(self, key: str, value: str, variable: str) -> str:
        """The value of a variable or a header."""
        if not _is_secret(key, value):
            return self.address(value)
        scheme = _SCHEME.fullmatch(value)
        return f"{scheme[1] if scheme else ''}{self._instead(variable, scheme[2] if scheme else value, key)}"

    def variable(self, key: str) -> str:
        words = re.sub(r"[^A-Za-z0-9]+", "_", "token" if key.lower() == "authorization" else key)
        return f"{self._prefix}_{words.strip('_').upper()}"

    def _instead(self, variable: str, value: str, what: str) -> str:
        what = f"{what} of {self._name}"
        if self._keeps is None or not self._keeps.search(value):
            return self._wanted.instead(variable, value, what)
        rest = _SHELLS.sub("", value)
        if re.search(r"\w", rest) and not rest.startswith("/"):  # more than a variable or a path
            self._wanted.kept.append(what)
        return value


def _word(text: str) -> str:
    """A shell's word with this text. Values are put into the script as they are: single quotes keep them whole."""
    parts = filter(None, _REPLACED.split(text))
    return "".join(f"'{part}'" if _REPLACED.fullmatch(part) else shlex.quote(part) for part in parts)


def _table(name: str, server: UpstreamSettings, wanted: Wanted) -> str:
    """The lines of a server in TOML. `wanted` gets the variables that replace secrets."""
    texts = _Texts(name, wanted)
    rows: dict[str, Any] = {}
    if server.command is not None:
        rows["command"] = server.command
        pairs = zip(server.args, ["", *server.args], strict=False)
        rows["args"] = [
            (texts.script(each) if _SCRIPT.fullmatch(before) and " " in each else texts.argument(each, before))
            for each, before in pairs
        ]
        rows["env"] = {key: texts.value(key, value.get_secret_value(), key) for key, value in server.env.items()}
        rows["cwd"] = server.cwd
    else:
        rows["url"] = texts.address(server.url or "")
        rows["type"] = server.type
        rows["headers"] = {
            key: texts.value(key, value.get_secret_value(), texts.variable(key))
            for key, value in server.headers.items()
        }
    rows["disabled"] = server.disabled
    lines = [f"{key} = {toml_value(value)}" for key, value in rows.items() if value not in (None, {}, [], False)]
    return "\n".join(["", f"[upstreams.servers.{name}]", *lines, ""])


def _is_secret(name: str, value: str) -> bool:
    """Judged by the name, or the form of the value. A value that already names a variable is not a secret."""
    if not value or "${" in value:
        return False
    if _is_named(name, value) or _SECRET_START.match(value) or _RANDOM.fullmatch(value):
        return True
    try:
        return value.lstrip()[:1] in ("{", "[") and _has_secret("", json.loads(value))
    except (ValueError, RecursionError):
        return False


def _has_secret(name: str, value: Any) -> bool:
    """For a value of JSON, all of whose text is replaced then."""
    if isinstance(value, dict):
        return any(_has_secret(f"{name}_{key}", inner) for key, inner in cast("dict[str, Any]", value).items())
    if isinstance(value, list):
        return any(_has_secret(name, inner) for inner in cast("list[Any]", value))
    if value is None or isinstance(value, bool):
        return False
    text = str(value)
    return bool(_is_secret(name, text) or _SCHEME.fullmatch(text) or _PASSWORD.search(text))


def _is_named(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and "${" not in value and not value.startswith(("/", "~", ".", "-"))
