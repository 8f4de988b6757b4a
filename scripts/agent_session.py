"""Makes notebooks/agent_session.ipynb: a conversation (agent_session.md) held with a real server, and its transcript.

python scripts/agent_session.py [FILE]

In the conversation, a block ```csv NAME is a call of write_file, a block ```python one of execute_code, and all else
words, in cells divided by ---. Only executions are in a transcript: a file becomes a cell that writes it, so that the
notebook runs again. What is different each time (ids, times) is made the same.
"""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import nbformat
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import Implementation, TextContent, TextResourceContents

HERE = Path(__file__).resolve().parent
CONVERSATION = HERE / "agent_session.md"
NOTEBOOK = HERE.parent / "notebooks" / "agent_session.ipynb"
BLOCK = re.compile(r"^```(python|csv)(?: (\S+))?\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
SESSION = "heat"
# Of a transcript's cell: different in each run.
VARYING = ("created_at", "ms", "queued_ms", "sum")


def steps(conversation: str) -> list[tuple[str, dict[str, str]]]:
    """Words, and calls of tools, in their order."""
    found: list[tuple[str, dict[str, str]]] = []
    place = 0
    for block in BLOCK.finditer(conversation):
        found += _words(conversation[place : block.start()])
        kind, name, text = block.groups()
        if kind == "csv":
            found.append(("write_file", {"path": name, "content": text}))
        else:
            found.append(("execute_code", {"code": text.rstrip("\n")}))
        place = block.end()
    return found + _words(conversation[place:])


def _words(text: str) -> list[tuple[str, dict[str, str]]]:
    return [("words", {"text": part.strip()}) for part in text.split("\n---\n") if part.strip()]


async def held(calls: list[tuple[str, dict[str, str]]]) -> list[Any]:
    """The cells of the transcript, once the calls were made."""
    with tempfile.TemporaryDirectory(prefix="kernelmcp-session-") as home:
        env = {**os.environ, "KERNELMCP_HOME": home, "KERNELMCP_LOGGING__LEVEL": "error"}
        server = StdioServerParameters(command=sys.executable, args=["-P", "-m", "kernelmcp"], env=env)
        async with Client(server, client_info=Implementation(name="agent", version="1")) as client:
            for tool, arguments in calls:
                result = await client.call_tool(tool, {**arguments, "session_id": SESSION})
                sys.stdout.writelines(f"{block.text}\n" for block in result.content if isinstance(block, TextContent))
            read = await client.read_resource(f"kernelmcp://sessions/{SESSION}/notebook")
    [contents] = read.contents
    assert isinstance(contents, TextResourceContents)
    return nbformat.reads(contents.text, as_version=4).cells


def stable(cell: Any, number: int) -> Any:
    """A cell of the transcript, without what is different in each run; nbclient goes on after one that failed."""
    facts = cell.metadata.kernelmcp
    for name in VARYING:
        del facts[name]
    facts.execution_id = f"execution-{number}"
    if facts.status == "error":
        cell.metadata.tags = ["raises-exception"]
    return cell


def notebook_of(found: list[tuple[str, dict[str, str]]], cells: list[Any]) -> Any:
    made: list[Any] = []
    recorded = iter(enumerate(cells, 1))
    for tool, arguments in found:
        if tool == "words":
            made.append(nbformat.v4.new_markdown_cell(arguments["text"]))
        elif tool == "write_file":
            metadata = {"kernelmcp": {"tool": "write_file"}, "tags": ["varies"]}
            source = f"%%writefile {arguments['path']}\n{arguments['content']}".rstrip("\n")
            made.append(nbformat.v4.new_code_cell(source, metadata=metadata))
        else:
            number, cell = next(recorded)
            made.append(stable(cell, number))
    assert next(recorded, None) is None
    for number, cell in enumerate(made, 1):
        cell.id = f"agent-session-{number:02}"
    kernelspec = {"name": "kernelmcp", "display_name": "Python (kernelmcp sandbox)", "language": "python"}
    return nbformat.v4.new_notebook(
        cells=made, metadata={"kernelspec": kernelspec, "language_info": {"name": "python"}}
    )


def main(file: Path) -> None:
    found = steps(CONVERSATION.read_text("utf-8"))
    cells = anyio.run(held, [step for step in found if step[0] != "words"])
    notebook = notebook_of(found, cells)
    nbformat.validate(notebook)
    nbformat.write(notebook, file)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else NOTEBOOK)
