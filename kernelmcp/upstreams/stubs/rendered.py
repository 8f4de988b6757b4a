"""All files of an offer: a folder for each server, a file for each tool, and an index for searches.

    index.json          {"servers": {NAME: {"name", "about", "tools": {TOOL: [name, brief, result, description]},
                         "denied": {TOOL: name}}},
                         "connecting": [NAME], "note": what a search says of these}
    NAME/__init__.py    a docstring: the server's own description, one line per tool
    NAME/TOOL.py        see module.py
    skills/NAME.py      a skill that a person has promoted

Paths consist of identifiers only, so no name leads out of the folder. A thousand tools take half a second: run it in a
thread, never in the event loop.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from kernelmcp.upstreams.catalogue import Catalogue, Tool
from kernelmcp.upstreams.stubs.identifiers import identifiers
from kernelmcp.upstreams.stubs.module import RESERVED, Stub, stub
from kernelmcp.upstreams.stubs.untrusted_text import common_beginning, docstring, lines, one_line, sentence

SKILLS = "skills"
# Names in the module `servers`; no server may have one of them.
SERVERS_OWN = frozenset(
    {"Blob", "LimitExceeded", "ServerUnavailable", "Text", "ToolDenied", "ToolError", "ToolTimeout"}
    | {"callMCPTool", "index", "search", SKILLS, "test_skills"}
)
# Tools beyond this are omitted, and the server's docstring says so.
MAX_TOTAL_CHARS = 16_000_000
MAX_NAME_CHARS = 500  # the protocol advises 128
MAX_INSTRUCTIONS_CHARS = 600
MAX_TITLE_CHARS = 60
MAX_REASON_CHARS = 300
# A server with 60 tools is listed in 1,300 tokens.
LISTED_LINE_CHARS = 80
MIN_LISTED_CHARS = 24
# Limit for the names of servers that are not connected yet.
MAX_CONNECTING_NAMED = 5


@dataclass(frozen=True)
class Rendered:
    files: dict[str, str]
    """By path within the folder."""
    digest: str


def render(
    catalogues: Sequence[Catalogue],
    allowed: Callable[[str, Tool], bool],
    skills: Mapping[str, str] | None = None,
    connecting: Collection[str] = (),
) -> Rendered:
    """Render the files of all allowed tools, and of promoted skills: their text by their names (upstreams/skills.py).
    Servers that are `connecting` have no tools yet. Never raises, whatever the catalogues contain."""
    files = {f"{SKILLS}/{name}.py": text for name, text in (skills or {}).items()}
    index: dict[str, dict[str, object]] = {}
    folders = identifiers((catalogue.server for catalogue in catalogues), SERVERS_OWN)
    room = MAX_TOTAL_CHARS
    for catalogue in sorted(catalogues, key=lambda each: each.server):
        folder = folders[catalogue.server]
        tools = {tool.name: tool for tool in catalogue.tools if allowed(catalogue.server, tool)}
        stubs: dict[str, tuple[Tool, Stub]] = {}
        said_of_all = common_beginning([tool.description for tool in tools.values()])
        for original, name in identifiers(filter(_is_short, tools), RESERVED).items():
            if room < 0:
                break
            made = stub(catalogue.server, tools[original], name, said_of_all)
            stubs[name] = tools[original], made
            files[f"{folder}/{name}.py"] = made.source
            room -= len(made.source)
            time.sleep(0)  # let the event loop's thread continue
        files[f"{folder}/__init__.py"] = _package(catalogue, stubs, left_out=len(tools) - len(stubs))
        index[folder] = {"name": catalogue.server, "about": _about(catalogue), "tools": _indexed(stubs)}
        denied = (tool.name for tool in catalogue.tools if tool.name not in tools and _is_short(tool.name))
        named = {name: original for original, name in identifiers(denied, RESERVED).items() if name not in stubs}
        if named:
            index[folder]["denied"] = named
    later = sorted(folders[server] for server in connecting)
    content = {"servers": index, "connecting": later, "note": _note(later, len(index)), "digest": _digest(files)}
    files["index.json"] = json.dumps(content, separators=(",", ":"))
    return Rendered(files, _digest(files))


def _note(connecting: Sequence[str], servers: int) -> str:
    if not connecting:
        return ""
    named = ", ".join(
        [*connecting[:MAX_CONNECTING_NAMED], *(["..."] if len(connecting) > MAX_CONNECTING_NAMED else [])]
    )
    number = f"{len(connecting)} of {servers} MCP servers {'is' if len(connecting) == 1 else 'are'}"
    return f"{number} still being connected ({named}): look again in a few seconds"


def _is_short(name: str) -> bool:
    return len(name) <= MAX_NAME_CHARS


def _about(catalogue: Catalogue) -> str:
    """A server's description; if it has no tools, the reason."""
    return sentence(catalogue.title or catalogue.instructions, MAX_TITLE_CHARS if catalogue.tools else MAX_REASON_CHARS)


def _indexed(stubs: Mapping[str, tuple[Tool, Stub]]) -> dict[str, list[str]]:
    return {name: [tool.name, made.brief, made.result, made.about] for name, (tool, made) in sorted(stubs.items())}


def _package(catalogue: Catalogue, stubs: Mapping[str, tuple[Tool, Stub]], left_out: int) -> str:
    """The source of a file that consists of a docstring."""
    title = one_line(f"{catalogue.title} {catalogue.version}", MAX_TITLE_CHARS)
    who = f"Tools of the MCP server {one_line(catalogue.server, 80)!r}{f' ({title})' if title else ''}"
    said = lines(catalogue.instructions, MAX_INSTRUCTIONS_CHARS)
    listed = [_line(made) for _, (_, made) in sorted(stubs.items())]
    if left_out:
        listed.append(f"... and {left_out:,} that do not fit: callMCPTool(name, arguments) calls them")
    text = "\n".join(
        [f"{who}{', which says of itself:' if said else '.'}", *(["", *said] if said else []), "", *listed]
    )
    return f'"""{docstring(text).rstrip()}\n"""\n'


def _line(made: Stub) -> str:
    about = one_line(made.about, max(MIN_LISTED_CHARS, LISTED_LINE_CHARS - len(made.brief)))
    return f"{made.brief}{f'  # {about}' if about else ''}"


def _digest(files: Mapping[str, str]) -> str:
    found = hashlib.sha256()
    for path, text in sorted(files.items()):
        found.update(f"{path}\0{len(text)}\0{text}\0".encode())
    return found.hexdigest()[:32]
