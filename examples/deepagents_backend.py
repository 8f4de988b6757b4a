# /// script
# requires-python = ">=3.11"
# dependencies = ["deepagents>=0.7.32,<0.8", "mcp>=2.3,<3"]
# ///
"""A sandbox backend for deepagents (LangChain): the agent's files, shell and Python are one kernelmcp session.

`BaseSandbox` makes ls, read, edit, grep and glob out of one command each, and writes by upload, so a backend is three
methods. deepagents' own `execute` tool runs a shell; `run_python` beside it keeps variables between calls, works on the
same files, and returns plots as images. Neither can reach your machine.

Install kernelmcp so that `kernelmcp --version` works, then:

    export ANTHROPIC_API_KEY=...
    uv run examples/deepagents_backend.py "Write a CSV of 100 random walks, then plot their ends."

Any chat model of LangChain works: `--model openai:gpt-5`, with the package langchain-openai.
"""

import argparse
import base64
from collections.abc import Callable
from typing import Any

from deepagents import create_deep_agent
from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox
from kernel_session import KernelError, KernelSession, open_session

TASK = "Write squares.csv with the squares of 1 to 20, then read it in Python and plot it."
PART_BYTES = 48 * 1024  # read_file returns at most 64 KiB, of text: here base64


class KernelBackend(BaseSandbox):
    """Paths are the session's: /workspace/a.txt is a file, /etc/passwd does not exist, and `..` is refused."""

    def __init__(self, session: KernelSession) -> None:
        self._session = session

    @property
    def id(self) -> str:
        return self._session.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """At its time limit a command is interrupted with exit code 124; files and variables stay."""
        try:
            result = self._session.run("execute_command", command=command, **({"timeout": timeout} if timeout else {}))
        except KernelError as refusal:
            return ExecuteResponse(output=str(refusal), exit_code=1)
        out, out_is_cut = self._session.whole(result, "stdout")
        errors, errors_are_cut = self._session.whole(result, "stderr")
        return ExecuteResponse(out + errors, result.fields["exit_code"], truncated=out_is_cut or errors_are_cut)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path=path, error=self._upload(path, content)) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._download(path) for path in paths]

    def _upload(self, path: str, content: bytes) -> str | None:
        try:
            text = base64.b64encode(content).decode()
            self._session.run("write_file", path=path, content=text, encoding="base64")
        except KernelError as refusal:
            return str(refusal)
        return None

    def _download(self, path: str) -> FileDownloadResponse:
        content = b""
        offset: int | None = 0
        try:
            while offset is not None:
                options = {"path": path, "encoding": "base64", "offset": offset, "max_bytes": PART_BYTES}
                fields = self._session.run("read_file", **options).fields
                content += base64.b64decode(fields["content"])
                offset = fields["next_offset"]
        except KernelError as refusal:
            return FileDownloadResponse(path=path, error=str(refusal))
        return FileDownloadResponse(path=path, content=content)


def python_tool(session: KernelSession) -> Callable[..., list[dict[str, Any]]]:
    def run_python(code: str, timeout_seconds: float = 60) -> list[dict[str, Any]]:
        """Run Python in a Jupyter kernel. Variables, imports and files in /workspace persist between calls.

        numpy, pandas and matplotlib can be imported. Plots are returned as images. The last expression is printed.
        """
        try:
            result = session.run("execute_code", code=code, timeout=timeout_seconds)
        except KernelError as refusal:
            return [{"type": "text", "text": str(refusal)}]
        images = [
            {"type": "image", "base64": base64.b64encode(content).decode(), "mime_type": media_type}
            for media_type, content in result.pictures
        ]
        # Models refuse blank text.
        return [{"type": "text", "text": result.text if result.text.strip() else "(blank output)"}, *images]

    return run_python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="?", default=TASK)
    parser.add_argument("--model", default="anthropic:claude-sonnet-5-5")
    options = parser.parse_args()
    with open_session() as session:
        agent = create_deep_agent(
            model=options.model,
            tools=[python_tool(session)],
            backend=KernelBackend(session),
            system_prompt="Work in /workspace. Prefer run_python to shell commands for anything that computes.",
        )
        state = agent.invoke({"messages": [{"role": "user", "content": options.task}]})
        print(state["messages"][-1].text)
        for file in session.run("get_workspace_info").fields["files"]:
            print(f"  /workspace/{file['path']}, {file['size']} bytes")


if __name__ == "__main__":
    main()
