"""The MCP tool `install_package`: a `%pip install` cell, so that the transcript reads as a person would write it.

The kernel process decides what may be installed; here a requirement must only be one that cannot become anything else
in a cell.
"""

import asyncio
import json
import re
import shlex
from collections.abc import Callable
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp_types import CallToolResult, ToolAnnotations
from packaging.requirements import InvalidRequirement, Requirement
from pydantic import Field

from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument
from kernelmcp.executions.execution import Execution
from kernelmcp.mcp_server import schemas
from kernelmcp.mcp_server.callers import gave_up, is_gone, minted_note
from kernelmcp.mcp_server.progress import wait_for
from kernelmcp.mcp_server.results import installs
from kernelmcp.mcp_server.results.execution_result import background_note
from kernelmcp.mcp_server.results.notes import variable_notes
from kernelmcp.mcp_server.results.view import View
from kernelmcp.mcp_server.tools.arguments import Ctx, SameSession
from kernelmcp.mcp_server.tools.contract_tool import ContractTool, contract_tool, structured_result
from kernelmcp.output.sanitize import counted
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.installed_packages import Installation, Package
from kernelmcp.sessions.registry import Registry

INSTALLS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=True)
MAX_REQUIREMENTS = 200
# A name, perhaps with extras, versions and a marker; no braces or dollars, which IPython would expand.
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-\[\], <>=!~;*+()'\"]{0,499}")
# What a model may write before the names.
_COMMAND = re.compile(r"(?:[%!] ?)?(?:(?:python3? -m )?(?:uv |micro)?pip3? install|(?:uv|poetry) add)(?: |$)")
# Between two requirements, and not between the versions of one.
_BETWEEN = re.compile(r"(?: ?, ?| )(?:and )?(?=[A-Za-z])")
# Of another command or a sentence. Somebody may own packages of these names.
_NO_NAMES = frozenset({"install", "add", "and", "or"})


class PackageTools:
    """The package tools of one server."""

    def __init__(self, settings: Settings, registry: Registry, caller: Callable[[Context[Any, Any]], Caller]) -> None:
        self._settings = settings
        self._registry = registry
        self._caller = caller

    async def install_package(
        self,
        package_name: Annotated[
            str | Annotated[list[str], Field(fail_fast=True)],
            Field(
                description='A requirement such as "pydantic>=2", or a list of them. By name, not by address or path.'
            ),
        ],
        ctx: Ctx,
        session_id: SameSession = None,
    ) -> Annotated[CallToolResult, schemas.InstallResult]:
        """Install Python packages with their dependencies: pure Python, those built for WebAssembly (numpy, pandas and
        many more), and sources that need no compiler. `%pip install NAME` in a cell does the same."""
        names = _checked([package_name] if isinstance(package_name, str) else package_name)
        config = self._settings.config
        caller = self._caller(ctx)
        session, created = await self._registry.find_or_create(caller, session_id)
        # The kernel's own limit ends it first, with an error that says what to do.
        seconds = max(self._settings.policy.execution_timeout_seconds, config.packages.install_timeout_seconds + 10)
        execution = session.submit(installs.COMMAND + " ".join(map(shlex.quote, names)), longest_seconds=seconds)
        execution.session_created, execution.names_session = created, session_id is not None
        try:
            await wait_for(execution, config.sessions.inline_wait_seconds, ctx)
        except asyncio.CancelledError:
            if gave_up(ctx):
                session.queue.interrupt(execution)
            raise
        execution.announce()
        note = minted_note(caller, session_id, session.id, created=created)
        # An error says of the variables only that the install itself has lost them.
        if execution.done.is_set() and (execution.status == "ok" or execution.state_lost) and not is_gone(ctx):
            execution.told()
        return _result(execution, note, self._settings.policy.output_budget_chars)

    def all(self) -> list[ContractTool]:
        return [contract_tool(self.install_package, "Install packages", INSTALLS)]


def _checked(names: list[str]) -> list[str]:
    if not 0 < len(names) <= MAX_REQUIREMENTS:
        raise InvalidArgument(
            f"package_name holds {len(names)} requirements",
            f"Name 1 to {MAX_REQUIREMENTS} packages.",
            argument="package_name",
        )
    plain = list(map(_without_command, names))
    for name, requirement in zip(names, plain, strict=True):
        if _is_requirement(requirement):
            continue
        parts = _several(requirement)
        if _NO_NAMES.isdisjoint(parts) and 0 < len(parts) <= MAX_REQUIREMENTS and all(map(_is_requirement, parts)):
            raise InvalidArgument(
                f"{name[:100]!r} names {counted(len(parts), 'package')}",
                f"Pass a list of requirements: {json.dumps(parts)[:1000]}.",
                argument="package_name",
            )
        raise InvalidArgument(
            f"{name[:100]!r} does not name a package",
            'Write a name and, if need be, versions, as in "pydantic>=2": no options, paths or addresses.',
            argument="package_name",
        )
    return plain


def _without_command(text: str) -> str:
    text = " ".join(text.split())
    command = _COMMAND.match(text)
    return text[command.end() :] if command else text


def _is_requirement(text: str) -> bool:
    try:
        return _REQUIREMENT.fullmatch(text) is not None and bool(Requirement(text).name)
    except InvalidRequirement:
        return False


def _several(text: str) -> list[str]:
    """The requirements that a text may list: as JSON, or with commas or blanks between them."""
    if not text.startswith("["):
        return _BETWEEN.split(text)
    try:
        return [str(each).strip() for each in json.loads(text)]
    except (ValueError, RecursionError):
        return []


def _result(execution: Execution, note: str, budget: int) -> CallToolResult:
    if execution.failure is not None:
        raise execution.failure
    if execution.status not in ("ok", "running"):
        error = installs.server_error(execution)
        if note:
            error.suggestions.append(note.strip())
        raise error
    found = installs.installation_of(execution)
    result: schemas.InstallResult = {
        "session_id": execution.session_id,
        "execution_id": execution.id,
        "status": execution.status,
        **installs.fields(found),
        "duration_ms": round(execution.execution_time_ms, 2),
    }
    lines = [_text(execution, found, budget), *(variable_notes(execution) if execution.done.is_set() else ())]
    return structured_result(result, "\n".join(lines) + note)


def _text(execution: Execution, found: Installation, budget: int) -> str:
    if execution.status == "running":
        waits = "The installation waits for the session's running cell, or for its kernel to start."
        state = waits if execution.started is None else "Still installing."
        return f"{state} Call get_execution with execution_id={execution.id!r} to wait for it."
    lines: list[str] = []
    if found.installed:
        lines.append(f"Installed {_listed(found.installed)}.")
    if found.already_present:
        lines.append(f"Already there: {_listed(found.already_present)}.")
    lines += [f"{note}." for note in found.notes]
    text = "\n".join(lines) or "Nothing had to be installed."
    background = View(execution).background(budget)
    return f"{text}\n{background_note(background)}" if background else text


def _listed(packages: list[Package]) -> str:
    return ", ".join(f"{package.name} {package.version}" for package in packages)
