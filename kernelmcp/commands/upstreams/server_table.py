"""`kernelmcp upstreams list`: the configuration, without connecting to anything."""

import os
import sys

from kernelmcp.commands.terminal import columns, plain
from kernelmcp.config.client_files import configured
from kernelmcp.config.settings import Settings
from kernelmcp.config.upstream_settings import UpstreamSettings
from kernelmcp.upstreams.catalogue_store import FOLDER, CatalogueStore
from kernelmcp.upstreams.target import identity_of, target_of

NONE = "No MCP servers are configured. `kernelmcp upstreams import claude_desktop` imports those of a client.\n"
HEAD = ("NAME", "TRANSPORT", "DEFAULT", "TOOLS", "FROM", "")


def main(settings: Settings) -> int:
    """Returns status 0 even if a server is unusable: its line says why."""
    found = configured(settings.config.upstreams)
    store = CatalogueStore(settings.home / FOLDER)
    rows = [
        (name, server.transport, str(server.default), _tools(store, name, server), found.origins[name], _note(server))
        for name, server in found.servers.items()
    ]
    sys.stdout.write(columns([HEAD, *rows]) if rows else NONE)
    for problem in found.problems:
        sys.stdout.write(f"! {plain(problem)}\n")
    return 0


def _tools(store: CatalogueStore, name: str, server: UpstreamSettings) -> str:
    """The number of its tools when it was last seen."""
    found = store.catalogue(name, identity_of(server))
    return "-" if found is None else str(len(found.catalogue.tools))


def _note(server: UpstreamSettings) -> str:
    if server.disabled:
        return "disabled"
    try:
        target_of(server, os.environ)
    except ValueError as exc:
        return str(exc)
    return ""
