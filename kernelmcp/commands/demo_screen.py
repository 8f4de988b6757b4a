"""The output of `kernelmcp demo`: the steps, indented, with streamed output marked, and where the picture is."""

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from mcp_types import CallToolResult, ImageContent, TextContent

INDENT = "    "
MAX_CODE_LINES, LAST_LINES = 12, 4


class Screen:
    """The screen of the demo. A picture is written to the file `picture`."""

    def __init__(self, out: TextIO, picture: Path) -> None:
        self._out = out
        self._picture = picture
        colourful = out.isatty() and not os.environ.get("NO_COLOR")
        bold, dim, green, off = ("\033[1m", "\033[2m", "\033[32m", "\033[0m") if colourful else ("", "", "", "")
        self._bold, self._dim, self._green, self._off = bold, dim, green, off

    def heading(self, text: str) -> None:
        self.line(f"\n{self._bold}{text}{self._off}", indent="")

    def call(self, tool: str, arguments: Mapping[str, Any]) -> None:
        """Print a cell's code, of a long one both ends; another tool with its arguments, long ones as a count."""
        if "code" in arguments:
            lines = str(arguments["code"]).splitlines()
        else:
            values = {name: _short(value) for name, value in arguments.items() if name != "session_id"}
            lines = [f"{tool}({', '.join(f'{name}={value}' for name, value in values.items())})"]
        if len(lines) > MAX_CODE_LINES:
            lines = [lines[0], f"({len(lines) - LAST_LINES - 1} more lines)", *lines[-LAST_LINES:]]
        for line in lines:
            self.line(f"{self._dim}{line}{self._off}", indent="  > ")

    def live(self, text: str) -> None:
        for line in text.splitlines():
            self.line(f"{self._green}~ {line}{self._off}")

    def result(self, result: CallToolResult, facts: Mapping[str, Any]) -> None:
        for block in result.content:
            if isinstance(block, TextContent):
                for line in block.text.splitlines():
                    self.line(line)
            elif isinstance(block, ImageContent):
                self._write(block)
        if "execution_time_ms" in facts:
            self.line(f"{self._dim}-- {facts['status']}, {facts['execution_time_ms']:.0f} ms{self._off}")

    def _write(self, block: ImageContent) -> None:
        content = base64.b64decode(block.data)
        self._picture.write_bytes(content)
        self.line(f"[{block.mime_type}, {len(content):,} bytes: {self._picture}]")

    def line(self, text: str, indent: str = INDENT) -> None:
        self._out.write(f"{indent}{text}".rstrip() + "\n")
        self._out.flush()


def _short(value: Any) -> str:
    text = str(value)
    return repr(text) if len(text) <= 40 and "\n" not in text else f"<{len(text):,} characters>"
