"""`kernelmcp upstreams list`, and the tables of the other commands: the configuration, without connecting to
anything."""

import os
import sys
from collections.abc import Sequence

from kernelmcp.config.client_files import configured
from kernelmcp.config.settings import Settings
from kernelmcp.config.upstreams import UpstreamSettings
from kernelmcp.output.sanitize import for_terminal
from kernelmcp.upstreams.kept import FOLDER, Kept
from kernelmcp.upstreams.target import identity_of, target_of

NONE = "No MCP servers are configured. `kernelmcp upstreams import claude_desktop` imports those of a client.\n"
HEAD = ("NAME", "TRANSPORT", "DEFAULT", "TOOLS", "FROM", "")


def main(settings: Settings) -> int:
    """Returns status 0 even if a server is unusable: its line says why."""
    found = configured(settings.config.upstreams)
    kept = Kept(settings.home / FOLDER)
    rows = [
        (name, server.transport, str(server.default), _tools(kept, name, server), found.origins[name], _note(server))
        for name, server in found.servers.items()
    ]
    sys.stdout.write(lines([HEAD, *rows]) if rows else NONE)
    for problem in found.problems:
        sys.stdout.write(f"! {plain(problem)}\n")
    return 0


def lines(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the last one is not padded."""
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in padded)


def plain(text: str) -> str:
    """An untrusted text on one line, without anything that a terminal acts on."""
    return for_terminal(text).replace("\n", " ").replace("\t", " ")


def _tools(kept: Kept, name: str, server: UpstreamSettings) -> str:
    """The number of its tools when it was last seen."""
    found = kept.catalogue(name, identity_of(server))
    return "-" if found is None else str(len(found.catalogue.tools))


def _note(server: UpstreamSettings) -> str:
    if server.disabled:
        return "disabled"
    try:
        target_of(server, os.environ)
    except ValueError as exc:
        return str(exc)
    return ""
