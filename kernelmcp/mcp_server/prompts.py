"""The MCP prompts: what a person would start from, by name."""

from collections.abc import Sequence
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp_types import Prompt
from pydantic import Field

QUESTION = "What is in it, and what stands out?"


def analyze_file(
    path: Annotated[
        str,
        Field(
            description="A file in the workspace, such as data.csv, or in a shared folder: /volumes/shared/data.csv."
        ),
    ],
    question: Annotated[str, Field(description="What you want to know.")] = QUESTION,
) -> str:
    """Look into a data file step by step and answer a question about it, with a plot where one helps."""
    asked = question.strip() or QUESTION  # forms of clients send an empty text for an optional argument
    return (
        f"Use execute_code to analyze the file {path!r} and answer this question: {asked}\n\n"
        "Work in small cells; variables stay between them. First look at the raw beginning of the file and at its "
        "size, then load it, check types and missing values, and only then compute. Install what you need with "
        "install_package. Plot what is easier seen than read, and check surprising figures a second way. End with "
        "the answer, the figures that it rests on, and what remains uncertain."
    )


def continue_session(
    session_id: Annotated[str, Field(description="The session, as get_sessions lists it.")],
) -> str:
    """Take up a session where it was left: read its notebook, restore its variables, and say where things stand."""
    return (
        f"Read the resource kernelmcp://sessions/{session_id}/notebook: it holds every cell that ran in the session "
        f"and what came of it. List its files with get_workspace_info(session_id={session_id!r}). Its variables "
        f"come back with its next cell, execute_code(session_id={session_id!r}). If the result says that they are "
        "lost, run the cells again that the rest builds on, and leave out what failed or only printed. Then say in a "
        "few sentences what was done, what came out, and what a sensible next step would be."
    )


def usage(prompts: Sequence[Prompt], name: str) -> str:
    """The text of an error for a client that got the name or the arguments of a prompt wrong."""
    for prompt in prompts:
        if prompt.name == name:
            taken = [each.name if each.required else f"{each.name} (optional)" for each in prompt.arguments or ()]
            return f"Invalid arguments: the prompt {name} takes {', '.join(taken)}."
    return f"There is no prompt {name[:200]!r}: there are {', '.join(prompt.name for prompt in prompts)}."


def register(server: MCPServer[Any]) -> None:
    """Offer the prompts."""
    server.prompt(title="Analyze a file")(analyze_file)
    server.prompt(title="Continue a session")(continue_session)
