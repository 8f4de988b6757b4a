"""`kernelmcp upstreams try NAME`: connects to a server and shows its tools, and which are allowed, ask, or are
denied."""

import sys
import time

import anyio

from kernelmcp.code_mode.call_policy import decide
from kernelmcp.commands.terminal import columns, fail, plain
from kernelmcp.commands.upstreams.connecting import open_connecting, server_named
from kernelmcp.config.settings import Settings
from kernelmcp.config.upstream_settings import UpstreamSettings
from kernelmcp.errors import cause
from kernelmcp.output.sanitize import counted
from kernelmcp.upstreams.catalogue import Catalogue
from kernelmcp.upstreams.catalogue_store import FOLDER, CatalogueStore
from kernelmcp.upstreams.connect import in_words
from kernelmcp.upstreams.logins.oauth import LoginNeeded

HEAD = ("TOOL", "A CALL IS", "BY", "IT SAYS")
STDERR_LINES = 20


def main(settings: Settings, name: str, *, accept: bool) -> int:
    """`accept`: accept its tools as shown, for `pin = true`. Returns status 1 if it is unreachable. Raises
    `ConfigurationError`."""
    return anyio.run(_try, settings, name, server_named(settings, name), accept)


async def _try(settings: Settings, name: str, server: UpstreamSettings, accept: bool) -> int:
    began = time.monotonic()
    async with open_connecting(settings) as connecting:
        try:
            with anyio.fail_after(server.timeout_seconds):
                async with connecting.catalogue(name, server) as catalogue:
                    seconds = time.monotonic() - began
        except Exception as exc:  # noqa: BLE001  # whatever goes wrong is what the command is for
            why = (
                f"run `kernelmcp upstreams login {name}`"
                if isinstance(cause(exc), LoginNeeded)
                else in_words(exc, server)
            )
            fail(f"{name} is not available: {plain(why)}")
            for line in connecting.last_words().splitlines()[-STDERR_LINES:]:
                sys.stderr.write(f"  stderr: {plain(line)}\n")
            return 1
    sys.stdout.write(_shown(settings, server, catalogue, seconds))
    return _pin(CatalogueStore(settings.home / FOLDER), name, catalogue, accept=accept)


def _pin(store: CatalogueStore, name: str, catalogue: Catalogue, *, accept: bool) -> int:
    """Show the tools that differ from the accepted ones. A running server applies the tools accepted here. Returns
    status 1 if they could not be accepted."""
    pins = store.pins(name)
    now = {tool.name: tool.digest for tool in catalogue.tools}
    others = {} if pins is None else {tool: tool in pins for tool, digest in now.items() if pins.get(tool) != digest}
    sys.stdout.writelines(
        f"{plain(tool)} {'has changed' if was_there else 'is new'} since the tools were accepted\n"
        for tool, was_there in others.items()
    )
    if accept:
        if not store.keep_pins(name, now):
            return fail(f"nothing was accepted: {store.folder} cannot be written")
        sys.stdout.write(f"Accepted the present form of {counted(len(now), 'tool')}.\n")
    elif others:
        sys.stdout.write(f"`kernelmcp upstreams try {name} --accept` accepts them.\n")
    return 0


def _shown(settings: Settings, server: UpstreamSettings, catalogue: Catalogue, seconds: float) -> str:
    rows: list[tuple[str, ...]] = []
    for tool in catalogue.tools:
        verdict = decide(server, settings.config.upstreams, tool)
        says = [word for word, said in (("reads", tool.read_only), ("destroys", tool.destructive)) if said]
        answer = {"allow": "allowed", "ask": "asked about", "deny": "denied"}[verdict.decision]
        rows.append((tool.name, answer, verdict.rule, ", ".join(says) or "-"))
    about = plain(f"{catalogue.title or catalogue.server} {catalogue.version}").strip()
    return (
        f"{about}: {counted(len(rows), 'tool')}, connected in {seconds:.1f} s\n{columns([HEAD, *rows]) if rows else ''}"
    )
