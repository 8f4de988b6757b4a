"""`kernelmcp skills list|promote|remove`: the Python files of sessions that all sessions of their user share.

A model wrote them, and a promoted one runs in sessions that did not: so a person promotes it, after seeing the code. No
tool of the server can. Sessions get it with their next cell.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from kernelmcp.commands.terminal import confirmed, fail, plain
from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument, ServerError, SessionNotFound, StorageFailed
from kernelmcp.files.home import Home
from kernelmcp.files.workspace import Quota, Workspace
from kernelmcp.output.sanitize import counted
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.storage.record import Record
from kernelmcp.sessions.storage.stored import StoredSessions
from kernelmcp.upstreams.skills import PromotedSkills, Skill, in_workspace, parse, read_from

_RULE = "-" * 72


def list_skills(settings: Settings, principal: str) -> int:
    promoted = PromotedSkills(settings.home).read(principal)
    sys.stdout.write(f"In every session of {_shown(principal)}:\n")
    for name, source in promoted.items():
        sys.stdout.write(f"  {name:<20} {_about(name, source)}\n")
    if not promoted:
        sys.stdout.write("  none\n")
    sys.stdout.write("In sessions (kernelmcp skills promote SESSION NAME):\n")
    found = [(record.session_id, skill) for record in _records(settings, principal) for skill in _in(settings, record)]
    for session, skill in found:
        there = promoted.get(skill.name)
        state = (
            "" if there is None else "  (promoted)" if there == skill.source else "  (differs from the promoted one)"
        )
        sys.stdout.write(f"  {session:<20} {skill.name:<20} {_shown(skill.about)}{state}\n")
    if not found:
        sys.stdout.write("  none\n")
    return 0


def promote(settings: Settings, session_id: str, name: str, principal: str, *, yes: bool) -> int:
    """Show the code and ask, unless `yes` is set."""
    try:
        skill = _wanted(settings, session_id, name, principal)
    except ServerError as exc:
        return fail(exc.to_text())
    source = skill.source.rstrip()
    length = counted(source.count("\n") + 1, "line")
    sys.stdout.write(f"skills/{skill.name}.py, {length}:\n{_RULE}\n{source}\n{_RULE} end of its {length}\n")
    sys.stdout.flush()
    if not yes and not _agreed(skill, session_id, principal):
        return fail("nothing was promoted")
    try:
        PromotedSkills(settings.home).add(principal, skill)
    except ServerError as exc:
        return fail(exc.to_text())
    except OSError as exc:
        return fail(f"{exc.filename} cannot be written: {exc.strerror}")
    sys.stdout.write(f"Promoted: every session of {_shown(principal)} has `from skills import {skill.name}`.\n")
    return 0


def remove(settings: Settings, name: str, principal: str) -> int:
    try:
        there = PromotedSkills(settings.home).remove(principal, name)
    except OSError as exc:
        return fail(f"{exc.filename} cannot be deleted: {exc.strerror}")
    if not there:
        return fail(f"there is no promoted skill {name!r}")
    sys.stdout.write(f"Removed: sessions no longer have {name}. The files in workspaces are unchanged.\n")
    return 0


def _wanted(settings: Settings, session_id: str, name: str, principal: str) -> Skill:
    """The skill to promote. Raises only `ServerError`s."""
    record = StoredSessions(_home(settings)).record(Caller(principal, lambda: None), session_id)
    if record is None:
        raise SessionNotFound(f"{principal} has no session {session_id!r}", "kernelmcp skills list shows them.")
    for workspace in _workspaces(settings, record):
        skill = read_from(workspace, name)
        if not skill.about or not skill.tests:
            raise InvalidArgument(
                f"skill {name!r} has no {'docstring' if not skill.about else 'function test_*'}",
                "A skill says what it does, and has a test that servers.test_skills() runs.",
            )
        return skill
    raise SessionNotFound(
        f"session {session_id!r} has no files", "kernelmcp skills list shows sessions that have some."
    )


def _agreed(skill: Skill, session_id: str, principal: str) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        fail("there is no terminal to ask on: --yes promotes what is shown")
        return False
    return confirmed(
        f"Code of session {session_id} above, written there by a model. Run it in every session of "
        f"{_shown(principal)} that imports {skill.name}?"
    )


def _home(settings: Settings) -> Home:
    return Home(settings.home, Path())


def _records(settings: Settings, principal: str) -> Iterator[Record]:
    """Raises `StorageFailed`."""
    home = _home(settings)
    try:
        if home.sessions.is_dir():
            yield from StoredSessions(home).records(Caller(principal, lambda: None))
    except OSError as exc:
        raise StorageFailed(
            f"{exc.filename or home.sessions} cannot be read: {exc.strerror}", "Run it as a user who may read it."
        ) from exc


def _workspaces(settings: Settings, record: Record) -> Iterator[Workspace]:
    policy = settings.policy
    quota = Quota(policy.workspace_max_mb * 2**20, policy.max_files)
    for name in reversed(record.sandboxes):
        sandbox = _home(settings).sandbox(name)
        if sandbox.is_whole:
            yield Workspace(sandbox.path, quota)


def _in(settings: Settings, record: Record) -> Iterator[Skill]:
    for workspace in _workspaces(settings, record):
        try:
            names = in_workspace(workspace)
        except ServerError:
            continue
        for name in names:
            try:
                yield read_from(workspace, name)
            except ServerError:
                yield Skill(name, "", "(no valid skill)", ())
        return


def _about(name: str, source: str) -> str:
    try:
        return _shown(parse(name, source.encode()).about)
    except InvalidArgument as exc:
        return f"({exc.message})"


def _shown(text: str) -> str:
    """The text on one line, safe for a terminal."""
    return plain(text)[:100]
