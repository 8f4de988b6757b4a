"""`kernelmcp demo`: the real server over stdio, a real MCP client, a scripted session, and its notebook.

Uses only the server's command. An error is reported in one sentence, because this is the first command that people run.
"""

import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio
from mcp import Client
from mcp_types import TextResourceContents

from kernelmcp.commands import own_server
from kernelmcp.commands.demo_cells import Step, steps
from kernelmcp.commands.demo_screen import Screen
from kernelmcp.commands.own_server import fields_of, text_of
from kernelmcp.commands.terminal import fail
from kernelmcp.config.load import load
from kernelmcp.config.models import OWN_KERNELSPEC
from kernelmcp.errors import ConfigurationError
from kernelmcp.preflight import check_start

# The first start on a machine may build the boot image.
DEADLINE_SECONDS = 300
# For the deletion of its session.
END_SECONDS = 10
# How long an installation retries without a network, in seconds.
INSTALL_SECONDS = 60
NEXT = """
Next: give it to a client, with a folder for your own files.

    kernelmcp install claude-desktop --folder ~/kernelmcp

Restart Claude Desktop, put a CSV file into ~/kernelmcp, and ask for a chart of it. README.md has other clients;
`kernelmcp doctor` tries harder to break out, and `kernelmcp setup` fetches numpy, pandas, matplotlib and more, so that
importing them takes no time in a session's first cell."""

AFTER_A_FAILURE = "\nNext: `kernelmcp doctor` says what holds on this machine."


class DemoFailed(Exception):
    """The text is for the person who runs the demo."""


def main(output: Path, kernelspec: str | None) -> int:
    """Raises `ConfigurationError`, before anything starts, for settings with which no server starts."""
    settings = load(overrides={"kernels": {"kernelspec": kernelspec}} if kernelspec else None)
    check_start(settings)
    _check_writable(output)
    picture = output.with_suffix(".png")
    _check_writable(picture)
    try:
        with _targets() as targets:
            demo = Demo(Screen(sys.stdout, picture), targets, output, settings.config.kernels.kernelspec)
            return anyio.run(demo.run)
    except (Exception, BaseExceptionGroup) as exc:
        if not (text := _in_words(exc)):
            raise
        return fail(f"the demo failed: {text}")


def _check_writable(file: Path) -> None:
    """Raises `ConfigurationError` now, rather than after the last step."""
    try:
        new = not file.exists()
        with file.open("ab"):
            pass
        if new:
            file.unlink()
    except OSError as exc:
        raise ConfigurationError(
            f"{file} cannot be written: {exc.strerror}", "Run it in another folder, or give --output FILE."
        ) from exc


def _in_words(exc: BaseException) -> str:
    """The message for an error; empty for a Ctrl-C and a pipe that nobody reads, which the command line handles."""
    if isinstance(exc, BaseExceptionGroup):
        inner = [_in_words(one) for one in cast("BaseExceptionGroup[BaseException]", exc).exceptions]
        return "" if "" in inner else inner[0]
    if isinstance(exc, KeyboardInterrupt | SystemExit | BrokenPipeError):
        return ""
    if isinstance(exc, TimeoutError):
        return f"it took more than {DEADLINE_SECONDS} s. `kernelmcp doctor` may say why."
    if isinstance(exc, DemoFailed):
        return str(exc)
    return f"{type(exc).__name__}: {exc}. What the server said is above; `kernelmcp doctor` may say more."


@dataclass(frozen=True)
class Targets:
    """The targets of the break-out: a secret in a file, and a port with a listener."""

    file: Path
    secret: str
    listener: socket.socket

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def reached(self, text: str) -> bool:
        """True if any data got out, whatever the guest reports."""
        try:
            self.listener.accept()[0].close()
        except BlockingIOError:
            return self.secret in text or "GOT OUT" in text
        return True


@contextmanager
def _targets() -> Iterator[Targets]:
    with tempfile.TemporaryDirectory(prefix="kernelmcp-demo-") as folder, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        found = Targets(Path(folder, "secret.txt"), secrets.token_hex(8), listener)
        found.file.write_text(found.secret)
        yield found


class Demo:
    """One run of the demo."""

    def __init__(self, screen: Screen, targets: Targets, output: Path, kernelspec: str) -> None:
        self._screen = screen
        self._targets = targets
        self._output = output
        self._kernelspec = kernelspec
        self._has_index = True
        self._skipped = 0

    async def run(self) -> int:
        screen = self._screen
        failed = 0
        every = steps(self._targets.file, self._targets.port)
        with anyio.fail_after(DEADLINE_SECONDS):
            screen.heading("Starting the server: kernelmcp, over stdio")
            async with own_server.client_of("kernelmcp-demo", [], self._environment()) as client:
                tools = [tool.name for tool in (await client.list_tools()).tools]
                screen.line(f"MCP {client.protocol_version}, {len(tools)} tools: {', '.join(tools)}")
                session_id = (await self._call(client, "create_session", {}))["session_id"]
                try:
                    for number, step in enumerate(every, 1):
                        screen.heading(f"{number}. {step.title}")
                        failed += not await self._step(client, step, session_id)
                    await self._write_notebook(client, session_id)
                except BaseException:  # no session of a demo stays, however it ends
                    with anyio.move_on_after(END_SECONDS, shield=True), suppress(Exception):
                        await client.call_tool("destroy_session", {"session_id": session_id})
                    raise
                await self._call(client, "destroy_session", {"session_id": session_id})
        done = f"{len(every) - failed - self._skipped} of {len(every)} steps did what they should"
        skipped = f", {self._skipped} skipped" if self._skipped else ""
        screen.heading(f"{done}{skipped}. Wrote {self._output}")
        screen.line(AFTER_A_FAILURE if failed else NEXT, indent="")
        return 1 if failed else 0

    def _environment(self) -> dict[str, str]:
        # The server's own log lines would appear between the steps.
        return {
            "KERNELMCP_LOGGING__LEVEL": "warning",
            "KERNELMCP_PACKAGES__INSTALL_TIMEOUT_SECONDS": str(INSTALL_SECONDS),
            **os.environ,
            "KERNELMCP_KERNELS__KERNELSPEC": self._kernelspec,
        }

    async def _step(self, client: Client, step: Step, session_id: str) -> bool:
        if step.needs_sandbox and self._kernelspec != OWN_KERNELSPEC:
            return self._skip(f"the kernel {self._kernelspec!r} has no sandbox")
        if step.needs_index and not self._has_index:
            return self._skip("the package is not there")
        arguments = {**step.arguments, "session_id": session_id}
        self._screen.call(step.tool, arguments)
        result = await own_server.finished(client, step.tool, arguments, _live(self._screen) if step.live else None)
        facts, text = fields_of(result), text_of(result)
        if step.needs_index and result.is_error:
            self._has_index = False
            return self._skip(text.strip().partition("\n")[0] or "it cannot be installed")
        self._screen.result(result, facts)
        if self._targets.reached(text):
            self._screen.line("This should not have been possible: `kernelmcp doctor` says what holds on this machine.")
            return False
        return facts["status"] == step.expected_status if "status" in facts else not result.is_error

    def _skip(self, why: str) -> bool:
        self._skipped += 1
        self._screen.line(f"skipped: {why}")
        return True

    async def _call(self, client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        result = await client.call_tool(tool, arguments)
        if result.is_error:
            raise DemoFailed(text_of(result))
        return fields_of(result)

    async def _write_notebook(self, client: Client, session_id: str) -> None:
        read = await client.read_resource(f"kernelmcp://sessions/{session_id}/notebook")
        contents = read.contents[0]
        if isinstance(contents, TextResourceContents):
            await anyio.Path(self._output).write_text(contents.text, "utf-8")


def _live(screen: Screen) -> Callable[..., Any]:
    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        screen.live(message or "")

    return on_progress
