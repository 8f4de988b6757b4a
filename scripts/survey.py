"""Which of the packages that models import most can be installed and used: 161 of them, through MCP, each in a session.

    scripts/survey [--pyodide-url FOLDER] [--no-index] [--only NAME,...] [--at-least N]

Each is installed with `install_package` and then used in one cell (scripts/survey.cells). It has *worked* when both
did; it is *refused* when the installation said in one clear sentence and in time that it cannot be had; all else has
*failed*: an exception, one that installs and then breaks, a version from years ago, an answer that is late or that
nobody understands. Ends with 1 when fewer worked than must, or when one has failed.

KERNELMCP_HOME is a fresh folder unless it is set: with one that has been used, what is cached counts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import psutil
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult, TextContent
from packaging.utils import canonicalize_name
from packaging.version import Version

CELLS = Path(__file__).with_name("survey.cells")
AT_LEAST = 135
# An answer that says no must not take longer: a model waits for it.
REFUSED_WITHIN_SECONDS = 10.0
# Of one package, with a network that is slow: the survey goes on after it.
PATIENCE_SECONDS = 300.0
# Of a call that waits for what goes on.
POLL_SECONDS = 30
# Nothing listens there.
NO_INDEX = "http://127.0.0.1:9/simple"
VERDICTS = ("worked", "refused", "failed")
REFUSALS = ("PACKAGE_NOT_FOUND", "PACKAGE_INSTALL_FAILED", "PERMISSION_DENIED")
# Longer than this, nobody calls it a sentence.
MAX_CHARS = 400
# What has no place in a sentence for a model: pip's own words, what it was called with, folders of this machine.
UNCLEAR = re.compile(
    r"pip failed|Traceback|(?:^|\s)-r\b|requirements\.txt|(?<![\w:/])/(?:tmp|home|root|work)/|\.dist-info|\n"
)


@dataclass(frozen=True)
class Package:
    """What to install, the oldest version that is no surprise, and the cell that uses it."""

    name: str
    oldest: Version
    cell: str


@dataclass
class Found:
    """What came of a package."""

    name: str
    verdict: str = "failed"
    version: str = ""
    install_seconds: float = 0.0
    install_cpu_seconds: float = 0.0
    cell_seconds: float = 0.0
    text: str = ""

    def __str__(self) -> str:
        seconds = f"{self.install_seconds:6.1f} {self.install_cpu_seconds:6.1f} {self.cell_seconds:6.1f}"
        return f"{self.name:22} {self.version:12} {self.verdict:8} {seconds}  {self.text}".rstrip()


HEAD = f"{'package':22} {'version':12} {'verdict':8} {'inst s':>6} {'CPU s':>6} {'cell s':>6}"


def packages() -> list[Package]:
    """The list, from cells between lines such as `# %% numpy 2`."""
    _, *parts = re.split(r"^# %% (\S+) (\S+)\n", CELLS.read_text("utf-8"), flags=re.MULTILINE)
    triples = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return [Package(name, Version(oldest), cell.partition("\n# ==")[0].strip()) for name, oldest, cell in triples]


def cpu_seconds() -> float:
    """Of this process and all below it. On a machine that is busy these say more than the seconds of the clock."""
    spent = 0.0
    for process in (here := psutil.Process(), *here.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            spent += sum(process.cpu_times()[:4])
    return spent


def text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


class Survey:
    """The packages one after the other, with one client."""

    def __init__(self, client: Client, asked: list[Package], oldest: dict[str, Version]) -> None:
        self._client = client
        self._asked = asked
        self._oldest = oldest

    async def look(self) -> list[Found]:
        found: list[Found] = []
        for number, package in enumerate(self._asked):
            each = Found(package.name)
            found.append(each)
            session = {"session_id": f"survey-{number}"}
            await self._client.call_tool("create_session", session)  # its start is not the package's time
            try:
                with anyio.fail_after(PATIENCE_SECONDS):
                    await self._try(package, each, session)
            except TimeoutError:
                each.text = f"nothing after {PATIENCE_SECONDS:g} s"
            await self._client.call_tool("destroy_session", session)
            print(each, flush=True)
        return found

    async def _call(self, tool: str, **arguments: str) -> tuple[str, dict[str, Any]]:
        """What the model reads, and the facts beside it, when all is done."""
        result = await self._client.call_tool(tool, arguments)
        facts: dict[str, Any] = (result.meta or {}).get("kernelmcp/result", {})
        while facts.get("status") == "running":  # for longer than a call waits
            asked = {"execution_id": facts["execution_id"], "wait_seconds": POLL_SECONDS}
            result = await self._client.call_tool("get_execution", asked)
            facts = (result.meta or {}).get("kernelmcp/result", {})
        return text_of(result), facts

    async def _try(self, package: Package, found: Found, session: dict[str, str]) -> None:
        begin, cpu = time.perf_counter(), cpu_seconds()
        text, facts = await self._call("install_package", package_name=package.name, **session)
        found.install_seconds, found.install_cpu_seconds = time.perf_counter() - begin, cpu_seconds() - cpu
        if facts.get("status") != "ok":
            found.text = self._judge(found, facts, text)
            return
        await self._use(package, found, session)
        self._look_at_versions(found, facts.get("installed", []))

    def _judge(self, found: Found, facts: dict[str, Any], text: str) -> str:
        """A refusal in one sentence and in time is one; anything else has failed."""
        error: dict[str, Any] = facts.get("error") or {}
        message = str(error.get("message", text))
        about = canonicalize_name(message).startswith(canonicalize_name(found.name))
        if error.get("error_code") not in REFUSALS or not about or len(message) > MAX_CHARS or UNCLEAR.search(message):
            return f"unclear: {message!r}"
        if found.install_seconds > REFUSED_WITHIN_SECONDS:
            return f"late: {message}"
        found.verdict = "refused"
        return message

    async def _use(self, package: Package, found: Found, session: dict[str, str]) -> None:
        begin = time.perf_counter()
        text, facts = await self._call("execute_code", code=package.cell, **session)
        found.cell_seconds = time.perf_counter() - begin
        if facts.get("status") == "ok":
            found.verdict = "worked"
        else:
            lines = text.strip().splitlines() or ["it said nothing"]
            found.text = "breaks when used: " + " | ".join(lines[-3:])

    def _look_at_versions(self, found: Found, installed: list[dict[str, str]]) -> None:
        """Of what was asked for, and of all else in the list that came with it."""
        versions = {canonicalize_name(package["name"]): package["version"] for package in installed}
        found.version = versions.get(canonicalize_name(found.name), "")
        ancient = [
            f"{name} {version}"
            for name, version in versions.items()
            if name in self._oldest and Version(version) < self._oldest[name]
        ]
        if ancient:
            found.verdict, found.text = "failed", f"ancient: {', '.join(ancient)} {found.text}"


@contextlib.contextmanager
def home() -> Iterator[str]:
    if named := os.environ.get("KERNELMCP_HOME"):
        yield named
    else:
        with tempfile.TemporaryDirectory(prefix="kms-") as folder:
            yield folder


async def survey(asked: list[Package], oldest: dict[str, Version], settings: dict[str, str]) -> list[Found]:
    with home() as folder:
        env = {"KERNELMCP_LOGGING__LEVEL": "error", **os.environ, "KERNELMCP_HOME": folder, **settings}
        server = StdioServerParameters(command=sys.executable, args=["-m", "kernelmcp"], env=env)
        async with Client(server) as client:
            return await Survey(client, asked, oldest).look()


def chosen(only: str | None) -> list[Package]:
    if only is None:
        return packages()
    names = {canonicalize_name(name) for name in only.split(",")}
    found = [package for package in packages() if canonicalize_name(package.name) in names]
    if unknown := names - {canonicalize_name(package.name) for package in found}:
        raise SystemExit(f"scripts/survey: not in the list: {', '.join(sorted(unknown))}")
    return found


def summary(found: list[Found], at_least: int) -> tuple[str, bool]:
    names = {verdict: [each.name for each in found if each.verdict == verdict] for verdict in VERDICTS}
    lines = [f"{len(found)} packages: " + ", ".join(f"{len(names[verdict])} {verdict}" for verdict in VERDICTS)]
    lines += [f"{verdict}: {', '.join(names[verdict])}" for verdict in VERDICTS[1:] if names[verdict]]
    if refusals := [each.install_seconds for each in found if each.verdict == "refused"]:
        lines.append(f"slowest refusal: {max(refusals):.1f} s of {REFUSED_WITHIN_SECONDS:g}")
    enough = len(names["worked"]) >= at_least
    if not enough:
        lines.append(f"fewer than {at_least} worked")
    return "\n".join(lines), enough and not names["failed"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/survey", description=__doc__)
    parser.add_argument("--pyodide-url", metavar="FOLDER", help="Pyodide's distribution: a folder, or a mirror")
    parser.add_argument("--no-index", action="store_true", help="with a package index that does not answer")
    parser.add_argument("--only", metavar="NAME,...", help="these, instead of all")
    parser.add_argument(
        "--at-least",
        type=int,
        metavar="N",
        help=f"how many must work (default {AT_LEAST}; of a part, 0)",
    )
    options = parser.parse_args()
    settings: dict[str, str] = {}
    if options.pyodide_url:
        settings["KERNELMCP_PACKAGES__PYODIDE_URL"] = options.pyodide_url
    if options.no_index:
        settings["KERNELMCP_PACKAGES__INDEX_URL"] = NO_INDEX
    at_least = options.at_least
    if at_least is None:
        at_least = 0 if options.only or options.no_index else AT_LEAST
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n{HEAD}", flush=True)
    oldest: dict[str, Version] = {canonicalize_name(package.name): package.oldest for package in packages()}
    found = anyio.run(survey, chosen(options.only), oldest, settings)
    text, good = summary(found, at_least)
    print(f"\n{text}\nload {os.getloadavg()[0]:.1f}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
