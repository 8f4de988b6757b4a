"""An MCP server of nine documents in a folder, with the tools that servers of files have.

    python documents_server.py

On stdio. Only listing and reading do something.
"""

from __future__ import annotations

from typing import Any

import anyio
import mcp_types as t
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server

PATH = {"type": "string", "description": "Path of a file or a folder, relative to the root or absolute."}
PATHS = {"type": "array", "items": {"type": "string"}, "minItems": 1, "description": "Paths of files to read."}
CONTENT = {"type": "string", "description": "The whole new content of the file, as text in UTF-8."}
PATTERN = {"type": "string", "description": "A glob pattern such as **/*.md, matched against relative paths."}
WITHIN = "Only works within the allowed directories."
# name: what it does, arguments, whether it only reads
TOOLS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "read_text_file": (
        (
            "Read the complete contents of a file from the file system as text. Handles various text encodings and "
            "gives detailed error messages if the file cannot be read. Use this tool when you need to examine the "
            "contents of a single file."
        ),
        {"path": PATH},
        True,
    ),
    "read_multiple_files": (
        (
            "Read the contents of several files at once, which is more efficient than reading them one by one. Failed "
            "reads of individual files don't stop the entire operation."
        ),
        {"paths": PATHS},
        True,
    ),
    "write_file": (
        (
            "Create a new file or completely overwrite an existing file with new content. Use with caution as it will "
            "overwrite existing files without warning."
        ),
        {"path": PATH, "content": CONTENT},
        False,
    ),
    "create_directory": (
        "Create a new directory or ensure that it exists, with all that lie above it.",
        {"path": PATH},
        False,
    ),
    "list_directory": (
        (
            "Get a detailed listing of all files and directories in a specified path. Results clearly distinguish "
            "between files and directories with [FILE] and [DIR] prefixes."
        ),
        {"path": PATH},
        True,
    ),
    "directory_tree": ("Get a recursive tree view of files and directories as JSON.", {"path": PATH}, True),
    "move_file": ("Move or rename a file or a directory.", {"source": PATH, "destination": PATH}, False),
    "search_files": (
        "Recursively search for files and directories matching a pattern. Returns full paths to all matching items.",
        {"path": PATH, "pattern": PATTERN},
        True,
    ),
    "get_file_info": ("Get size, times, type and permissions of a file or directory.", {"path": PATH}, True),
}
SENTENCE = "The parties agreed that section {} needs another look before the renewal of the contract in spring. "
DOCUMENTS = {
    f"contract_{number}.md": f"# Contract {number}\n\n" + "".join(SENTENCE.format(part) for part in range(110))
    for number in range(1, 10)
}


def listed() -> list[t.Tool]:
    return [
        t.Tool(
            name=name,
            description=f"{description} {WITHIN}",
            input_schema={"type": "object", "properties": arguments, "required": list(arguments)},
            annotations=t.ToolAnnotations(read_only_hint=reads),
        )
        for name, (description, arguments, reads) in TOOLS.items()
    ]


async def list_tools(ctx: Any, params: Any) -> t.ListToolsResult:
    return t.ListToolsResult(tools=listed())


async def call_tool(ctx: Any, params: t.CallToolRequestParams) -> t.CallToolResult:
    if params.name == "list_directory":
        text = "\n".join(f"[FILE] {name}" for name in DOCUMENTS)
    else:
        text = DOCUMENTS[(params.arguments or {})["path"]]
    return t.CallToolResult(content=[t.TextContent(text=text)])


async def main() -> None:
    server: Server[Any] = Server("documents", version="1.0", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
