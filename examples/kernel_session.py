"""A kernelmcp session as blocking calls, for programs that are not async. The adapters for smolagents and deepagents in
this folder use it; copy it beside yours. It needs the package `mcp` and the command `kernelmcp`.

    with open_session() as session:
        session.run("execute_code", code="x = 41")
        print(session.run("execute_code", code="x + 1").fields["result"])
"""

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp_types import ImageContent, TextContent

# Asks for a result's fields as well as its text. Clients that only show results to a model do without.
STRUCTURED = {"kernelmcp/structured": True}
# Output that is longer is not fetched: it stays in the session, and the text says where.
MAX_OUTPUT_CHARS = 1_000_000
WAIT_SECONDS = 30


class KernelError(Exception):
    """The server refused a call. The text says why, and what to do instead."""


@dataclass(frozen=True)
class Result:
    """Data from code that nobody has read: show it, store it, parse it as JSON, but never evaluate or unpickle it."""

    text: str
    """What a model should read."""
    fields: dict[str, Any]
    """What a program should read: docs/tools.md."""
    pictures: list[tuple[str, bytes]]
    """Media type (image/png or image/jpeg) and content."""


class KernelSession:
    """One session: variables, files and a shell. Its methods may be called from any thread; calls run in turn."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self._portal = portal
        self._client = client
        self.id: str = self._call("create_session").fields["session_id"]

    def run(self, tool: str, **arguments: Any) -> Result:
        """Call a tool in this session, and wait until the code has ended. An exception of the code is a result."""
        result = self._call(tool, session_id=self.id, **arguments)
        while result.fields.get("status") == "running":
            execution = result.fields["execution_id"]
            result = self._call("get_execution", execution_id=execution, wait_seconds=WAIT_SECONDS)
        return result

    def whole(self, result: Result, stream: str) -> tuple[str, bool]:
        """All of a result's `stdout` or `stderr`, and whether some of it is missing."""
        cut = (result.fields["truncated"] or {}).get(stream)
        if cut is None:
            return result.fields[stream], False
        if cut["total_chars"] > MAX_OUTPUT_CHARS:
            return result.fields[stream], True
        return self.read(cut["uri"]), False

    def read(self, uri: str) -> str:
        """The text of a resource that a result names."""
        return self._portal.call(self._client.read_resource, uri).contents[0].text

    def _call(self, tool: str, **arguments: Any) -> Result:
        call = partial(self._client.call_tool, tool, arguments, meta=STRUCTURED)
        result = self._portal.call(call)
        fields = result.structured_content or {}
        text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
        if "error" in fields and "status" not in fields:
            raise KernelError(text)
        images = [block for block in result.content if isinstance(block, ImageContent)]
        return Result(text, fields, [(image.mime_type, base64.b64decode(image.data)) for image in images])


@contextmanager
def open_session() -> Iterator[KernelSession]:
    """Start a server with a session, and delete both in the end."""
    # Your settings go to the server; the keys of your models and everything else in the environment does not.
    settings = {name: value for name, value in os.environ.items() if name.startswith("KERNELMCP_")}
    server = StdioServerParameters(command="kernelmcp", args=["serve", "--log-level", "warning"], env=settings)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(server)) as client:
        session = KernelSession(portal, client)
        try:
            yield session
        finally:
            session.run("destroy_session")
