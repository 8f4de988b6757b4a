"""Skills (`io.modelcontextprotocol/skills`, SEP-2640): the skills that a person has promoted, as resources of their
principal.

    skill://weekly-report/SKILL.md            what it does, and how to use it in a session
    skill://weekly-report/weekly_report.py    its code

A model of a client without the extension reads them as ordinary resources.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, PaginatedRequestParams, RequestParams, Resource
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from kernelmcp.errors import InvalidArgument
from kernelmcp.files.home import Home
from kernelmcp.mcp_server.callers import Callers
from kernelmcp.mcp_server.extensions import SKILLS

SCHEME = "skill://"
# A person may promote or remove one at any time.
CACHED = {"ttlMs": 60_000, "cacheScope": "private"}
# Of a name in the Agent Skills format.
MAX_NAME_CHARS = 64
GUIDE = """\
---
name: {name}
description: {description}
---

# {name}

{about}

It is a Python module in every session of this server. Use it in a cell, with the tool `execute_code`:

    from skills import {module}
    help({module})

Its code is in [{module}.py]({module}.py).
"""

RequestContext = ServerRequestContext[Any, Any]


class GetSkillParams(RequestParams):
    uri: str


@dataclass(frozen=True)
class _Skill:
    name: str
    description: str
    files: dict[str, str]
    """The texts by their URIs; the first one is SKILL.md."""

    @property
    def uri(self) -> str:
        return next(iter(self.files))

    @property
    def entry(self) -> dict[str, Any]:
        contents = {uri: text.encode() for uri, text in self.files.items()}
        return {
            "uri": self.uri,
            "frontmatter": {"name": self.name, "description": self.description},
            "resources": [
                {"uri": uri, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
                for uri, data in contents.items()
            ],
        }


class Skills(Extension):
    """The skills of one server."""

    identifier = SKILLS

    def __init__(self, home: Home, callers: Callers) -> None:
        self._home = home
        self._callers = callers

    def methods(self) -> Sequence[MethodBinding]:
        versions = frozenset(MODERN_PROTOCOL_VERSIONS)
        return [
            MethodBinding("skills/list", PaginatedRequestParams, self.list, versions),
            MethodBinding("skills/get", GetSkillParams, self.get, versions),
        ]

    async def list(self, ctx: RequestContext, params: PaginatedRequestParams) -> HandlerResult:
        return {"skills": [skill.entry for skill in await self._of(Context(request_context=ctx))], **CACHED}

    async def get(self, ctx: RequestContext, params: GetSkillParams) -> HandlerResult:
        for skill in await self._of(Context(request_context=ctx), params.uri):
            if skill.uri == params.uri:
                return {"skill": skill.entry, **CACHED}
        raise MCPError(INVALID_PARAMS, f"no skill is served at {params.uri[:200]!r}: skills/list names them")

    async def listed(self, context: Context[Any, Any]) -> Sequence[Resource]:
        """Their part of resources/list."""
        return [
            Resource(uri=skill.uri, name=skill.name, description=skill.description, mime_type="text/markdown")
            for skill in await self._of(context)
        ]

    async def read(self, uri: str, context: Context[Any, Any]) -> ReadResourceContents:
        """A file of a skill. Raises `ResourceNotFoundError`."""
        for skill in await self._of(context, uri):
            if (text := skill.files.get(uri)) is not None:
                return ReadResourceContents(text, "text/markdown" if uri == skill.uri else "text/x-python")
        raise ResourceNotFoundError(f"no skill is served at {uri[:200]!r}")

    async def _of(self, context: Context[Any, Any], uri: str | None = None) -> Sequence[_Skill]:
        """The principal's skills; with `uri`, only the one that has it."""
        principal = self._callers(context).principal
        return await anyio.to_thread.run_sync(self._read, principal, uri)

    def _read(self, principal: str, uri: str | None) -> Sequence[_Skill]:
        if not self._home.skills.is_dir():
            return ()
        # Without a skill, and without upstreams, nothing of theirs is imported.
        from kernelmcp.upstreams.skills import PromotedSkills, parse

        found: dict[str, _Skill] = {}
        for module, source in PromotedSkills(self._home.root).read(principal).items():
            if uri is not None and not uri.startswith(f"{SCHEME}{_name(module)}/"):
                continue
            try:
                about = parse(module, source.encode()).about or "A Python module."
            except InvalidArgument:  # somebody has changed the file since it was promoted
                continue
            skill = _skill(module, source, about)
            found.setdefault(skill.name, skill)
        return list(found.values())


def _name(module: str) -> str:
    """As the format wants it. Of two modules with one name, the first is served."""
    return re.sub("_+", "-", module.lower()).strip("-")[:MAX_NAME_CHARS]


def _skill(module: str, source: str, about: str) -> _Skill:
    name = _name(module)
    # A JSON text is one of YAML as well.
    guide = GUIDE.format(name=name, description=json.dumps(about, ensure_ascii=False), module=module, about=about)
    folder = f"{SCHEME}{name}"
    return _Skill(name, about, {f"{folder}/SKILL.md": guide, f"{folder}/{module}.py": source})
