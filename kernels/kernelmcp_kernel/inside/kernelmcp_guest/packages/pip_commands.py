"""Runs `%pip`, `!pip`, `!python -m pip`, `%uv pip` and `!uv pip`, or suggests an alternative."""

import codecs
import json
import os
import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution

from kernelmcp_guest import advice, packages
from kernelmcp_guest.packages import PackageError

HELP = (
    "the sandbox has: %pip install [--pre] [--no-deps] NAME ..., %pip install -r FILE, %pip list [--available], "
    "%pip freeze, %pip show NAME, %pip check"
)

# Options without effect here that people often write: without a value, with a value, and short ones.
_IGNORED_FLAGS = """
--verbose --user --no-cache-dir --no-cache --no-input --no-color --prefer-binary --isolated --compile
--no-compile --break-system-packages --disable-pip-version-check --no-python-version-warning --no-warn-conflicts
--no-warn-script-location --no-build-isolation --no-progress --system --yes -y
"""
_IGNORED_SETTINGS = """
--progress-bar --only-binary --root-user-action --upgrade-strategy --timeout --default-timeout --retries --cache-dir
--python --prerelease
"""
_OF_EXTRA = re.compile(r";.*\bextra\s*==")
_SHORT_FLAGS = re.compile(r"-[qvU]+")
_OF_LETTERS = {"q": "quiet", "U": "upgrade"}
# Supported options, by the kernel process's names.
_OPTIONS = {
    "--pre": "pre", "--prerelease=allow": "pre", "--no-deps": "no_deps", "--no-dependencies": "no_deps",
    "--upgrade": "upgrade", "--force-reinstall": "upgrade", "--ignore-installed": "upgrade", "-I": "upgrade",
    "--quiet": "quiet",
}  # fmt: skip

_INDEX = "the server's setting packages.index_url chooses the index; install by name from it"
_FOLDERS = "each session has a place of its own for packages; install without it"
_SOURCE = "%pip install NAME takes a wheel, or builds a source in pure Python by itself"
_CONTINUED = re.compile(r"\\\n")
_PIP = re.compile(r"pip(?![\w.-])", re.IGNORECASE)
_NOT_LISTED = {"-o", "--outdated", "-u", "--uptodate"}
_CONSTRAINTS = "write the versions into the requirements themselves, as in: %pip install 'pydantic>=2'"
_PROJECT = (
    "a folder or file is not installed: %pip install NAME brings what it needs by name, and its modules are imported "
    "after sys.path.insert(0, FOLDER), where FOLDER may also be a wheel in pure Python"
)
_ADDRESS = (
    "packages are installed by name from the package index, not from an address: %pip install NAME brings what is "
    "published there; modules that are not are files to put into /workspace and import"
)
_WHY_NOT = {
    "-i": _INDEX, "--index-url": _INDEX, "--extra-index-url": _INDEX, "-f": _INDEX, "--find-links": _INDEX,
    "--no-index": _INDEX, "--index": _INDEX, "--default-index": _INDEX, "--trusted-host": _INDEX,
    "-t": _FOLDERS, "--target": _FOLDERS, "--prefix": _FOLDERS, "--root": _FOLDERS, "--src": _FOLDERS,
    "-c": _CONSTRAINTS, "--constraint": _CONSTRAINTS, "--constraints": _CONSTRAINTS,
    "-e": _PROJECT, "--editable": _PROJECT, "--no-binary": _SOURCE,
}  # fmt: skip
_INSTALL_KNOWS = "%pip install NAME finds, fetches and checks it in one step"
_COMMANDS = {
    "uninstall": "an installed package stays as long as its session; for one without it use a new session, or "
    "reset_workspace with scope all, or just do not import it",
    "download": f"{_INSTALL_KNOWS}, and importlib.resources reads its files",
    "wheel": _SOURCE,
    "index": "%pip install NAME==0 lists the versions that there are",
    "search": "%pip install NAME says whether there is such a package, and %pip list --available what Pyodide has",
    "cache": "the server keeps fetched packages",
    "config": _INDEX,
}
_NO_PROJECTS = "there are no projects and environments of uv's here: a session is one; use %pip install NAME"

# Ways to start pip; sys.executable is empty here, so that `{sys.executable} -m pip` may begin with -m.
_STARTS = re.compile(
    r"\s*(?:(?:(?:\{sys\.executable\}|(?:\S*/)?python[\d.]*)\s+)?-m\s+pip|(?:\S*/)?pip[\d.]*|(?:\S*/)?uv(?P<uv>))(?=\s|$)"
)
_INSTALLS = re.compile(r"\s(?:install|add|sync)\b")
# In each command of a shell line.
_UV = re.compile(r"(^|[;&|])(\s*)(?:\S*/)?uv\s+(?=pip\s)")
# The rest of a shell line that is not pip's. A version before it may contain a redirection's character: without a blank
# before that, what begins with a digit is a version.
_TARGET = r"""(?=[^\s;&|<>]*[A-Za-z/"'])(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\s"'\\;&|<>])+"""
_REDIRECTION = rf"(?:(?<=\s)[012&]?>>?(?!=)|&?>>?(?!\s*[=\d]))\s*(?:&\d|{_TARGET})"
_QUOTED_OR_REDIRECTION = re.compile(rf"""(\\.|'[^']*'|"(?:\\.|[^"\\])*")|{_REDIRECTION}""")


def pip(line: str, *, captured: bool = False) -> None:
    """`%pip`: install packages into this session, or list packages. `captured`: print an installation's output to
    sys.stdout, which is a program's."""
    words, options = _without_habits(_split(line))
    command, *arguments = words or ["help"]
    if command == "install":
        _install(arguments, {**options, "captured": True} if captured else options)
    elif command == "list" and "--available" in arguments:
        _say(", ".join(packages.available()))
    elif command in ("list", "freeze"):
        _list(arguments, "freeze" if command == "freeze" else "columns")
    elif command == "show":
        _show([argument for argument in arguments if not argument.startswith("-")])
    elif command == "check":
        _say("\n".join(packages.unmet()) or "No broken requirements found.")
    elif command in ("help", "--help", "-h", "--version", "-V"):
        _say(f"Packages are installed by the sandbox's kernel process: {HELP}")
    else:
        raise PackageError(f"pip {command} is not available: {_COMMANDS.get(command, HELP)}")


def uv(line: str) -> None:
    """`%uv pip`: same as `%pip`."""
    command, _, rest = line.strip().partition(" ")
    if command != "pip":
        raise PackageError(f"uv {command} is not available: {_NO_PROJECTS}")
    pip(rest)


def is_pip(command: str) -> bool:
    """Return whether a line calls pip, such as `!pip install x`."""
    return _STARTS.match(command) is not None


def is_only_pip(command: str) -> bool:
    """Return whether every command of a shell line is pip, and no shell is needed. Output of an installation is for
    people, so pipes and redirections after it are ignored."""
    parts = _parts(command)
    has_target = "|" in _words(command) or bool(_redirections(command))
    return all(map(is_pip, parts)) and (not has_target or all(map(_INSTALLS.search, parts)))


def without_uv(command: str) -> str:
    """The same shell line with `pip` for `uv pip`, which no shell has."""
    return _UV.sub(r"\1\2", command)


def run_command(command: str) -> None:
    """Run a line that begins with pip, as far as possible without a shell."""
    for part in _parts(command):
        if found := _STARTS.match(part):
            (pip if found["uv"] is None else uv)(part[found.end() :])
        else:
            _say(f"[not done, because there is no shell: {part}]")
    if not is_only_pip(command):
        for redirection in _redirections(command):
            _say(f"[not done, because there is no shell: {redirection}]")


def _parts(command: str) -> list[str]:
    """The commands of a shell line, without redirections and the commands that their output is piped to."""
    found: list[list[str]] = [[]]
    piped = False
    for word in _words(command):
        if set(word) <= set(";&|"):
            piped = word == "|"
            found += [] if piped else [[]]
        elif not piped:
            found[-1].append(word)
    return [" ".join(words) for words in found if words]


def _words(command: str) -> list[str]:
    """The words of a shell line without redirections, including the operators between its commands."""
    try:
        words = shlex.shlex(_without_redirections(command), posix=False, punctuation_chars=";&|")
        words.whitespace_split, words.commenters = True, "#"
        return list(words)
    except ValueError:
        return [command]  # `pip` reports the error


def _redirections(command: str) -> list[str]:
    return [found[0] for found in _QUOTED_OR_REDIRECTION.finditer(command) if found[1] is None]


def _without_redirections(command: str) -> str:
    return _QUOTED_OR_REDIRECTION.sub(r"\1", command)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(_without_redirections(line), comments=True)
    except ValueError as error:
        raise packages.kind("InvalidRequirement")(f"{line.strip()}: {error}") from None


def _install(arguments: list[str], options: dict[str, bool]) -> None:
    wanted = _requirements(arguments)
    kept = [requirement for requirement in wanted if not _PIP.match(requirement)]
    if len(kept) < len(wanted):
        _say("pip: there is none here, and none is needed")
        if not kept:
            return
    for line in packages.install(kept, **options):
        _say(line)


def _requirements(arguments: list[str], inside: tuple[str, ...] = ()) -> list[str]:
    """The requirements in pip's arguments. `inside`: the files that contain them, each named in the previous one."""
    found: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in ("-r", "--requirement", "--requirements"):
            found += _read_requirements(next(words, ""), inside)
        elif word.startswith(("-r", "--requirement=")):
            found += _read_requirements(word.removeprefix("--requirement=").removeprefix("-r"), inside)
        elif word.startswith("-"):
            option = word.partition("=")[0]
            why = _WHY_NOT.get(option, _WHY_NOT.get(option[:2], HELP) if option[:2] != "--" else HELP)
            raise packages.kind("InvalidRequirement")(f"pip install {option} is not available here: {why}")
        elif "://" in word:
            raise packages.kind("InvalidRequirement")(f"{word}: {_ADDRESS}")
        elif word.startswith((".", "/", "~")) or word.endswith((".whl", ".tar.gz", ".zip")):
            raise packages.kind("InvalidRequirement")(f"{word}: {_PROJECT}")
        else:
            found.append(word)
    return found


def _without_habits(words: list[str]) -> tuple[list[str], dict[str, bool]]:
    """The words without ineffective options, before or after the command; and the effective options."""
    flags, settings = _IGNORED_FLAGS.split(), _IGNORED_SETTINGS.split()
    kept: list[str] = []
    options: dict[str, bool] = {}
    rest = iter(words)
    for word in rest:
        if word in _OPTIONS:
            options[_OPTIONS[word]] = True
        elif word in settings:
            next(rest, None)  # skips its value
        elif _SHORT_FLAGS.fullmatch(word):
            options |= {_OF_LETTERS[letter]: True for letter in word if letter in _OF_LETTERS}
        elif not (word in flags or word.partition("=")[0] in settings):
            kept.append(word)
    return kept, options


def _read_requirements(file: str, inside: tuple[str, ...]) -> list[str]:
    if inside:
        file = os.path.normpath(os.path.join(os.path.dirname(inside[-1]), file))
    if file in inside:
        raise packages.kind("InvalidRequirement")(f"{file} names itself: {' -> '.join((*inside, file))}")
    try:
        stream = open(file, "rb")  # noqa: SIM115
    except OSError as error:
        why = "there is no file of that name" if isinstance(error, FileNotFoundError) else error.strerror
        hint = advice.advice(error)
        raise packages.kind("InvalidRequirement")(f"{file}: {why}" + (f" ({hint})" if hint else "")) from None
    with stream:
        is_utf16 = stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    with open(file, encoding="utf-16" if is_utf16 else "utf-8-sig") as stream:
        text = _CONTINUED.sub(" ", stream.read())
    lines = [line.partition(" #")[0].strip() for line in text.splitlines()]
    found: list[str] = []
    for line in lines:
        if line.startswith("-"):
            found += _requirements(_split(line), (*inside, file))
        elif line and not line.startswith("#"):
            found.append(" ".join(line.split()))  # with its hashes, which the kernel process compares
    return found


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _list(arguments: list[str], form: str) -> None:
    if unknown := _NOT_LISTED.intersection(arguments):
        raise PackageError(
            f"pip list {unknown.pop()} is not available: %pip install -U NAME says whether there is a newer version"
        )
    form = (re.findall(r"--format[= ](\w+)", " ".join(arguments)) or [form])[-1]
    found = packages.installed()
    if form == "json":
        _say(json.dumps([{"name": name, "version": version} for name, version in found]))
    else:
        _say("\n".join(("{}=={}" if form == "freeze" else "{:<30} {}").format(*package) for package in found))


def _show(names: list[str]) -> None:
    for name in names:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            _say(f"{name} is not installed; %pip install {name} might help")
            continue
        fields = ("Name", "Version", "Summary", "Home-page", "License-Expression")
        _say("\n".join(f"{field}: {found.metadata[field]}" for field in fields if found.metadata[field]))
        required = [line for line in found.requires or [] if not _OF_EXTRA.search(line)]
        _say(f"Requires: {', '.join(required)}\n")
