"""The user's folder through a real client: read, written and named by every tool; and the addresses of results."""

import base64
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp import Client
from mcp_types import CallToolResult

from ..starting import DEADLINE, over_stdio, start_server
from .support import Connect

# a test may block its own event loop

pytestmark = pytest.mark.anyio
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WRITES = {
    "python": "import os; os.makedirs('/volumes/shared/d'); f = open('/volumes/shared/d/python.txt', 'w').write('1')",
    "javascript": "require('fs').writeFileSync('/volumes/shared/javascript.txt', '1')",
    "shell": "echo 1 > /volumes/shared/shell.txt",
}


def text_of(result: CallToolResult) -> str:
    return result.content[0].text


async def call(client: Client, tool: str, **arguments: object) -> CallToolResult:
    return await client.call_tool(tool, arguments)


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.cold
@pytest.mark.usefixtures("umask")
async def test_the_folder_is_made_and_every_tool_reaches_it_with_the_users_modes(
    server_env: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "shared"
    async with Client(over_stdio("serve", "--folder", str(folder), env=server_env), mode="legacy") as client:
        written = await call(client, "write_file", path="/volumes/shared/in/a.csv", content="a\n1\n")
        assert not written.is_error, text_of(written)
        assert (folder / "in/a.csv").read_text() == "a\n1\n"
        assert text_of(await call(client, "read_file", path="/volumes/shared/in/a.csv")) == "a\n1\n"
        for language, code in WRITES.items():
            result = await call(client, "execute_code", code=code, language=language)
            [changed] = result.structured_content["files_changed"]
            assert changed["path"].endswith(f"{language}.txt")
            assert changed["host_path"] == str(folder / changed["path"].removeprefix("/volumes/shared/"))
            assert changed["host_path"] in text_of(result)
            for path in (changed["uri"], changed["path"]):
                assert text_of(await call(client, "read_file", path=path)).strip() == "1"
            assert (await client.read_resource(changed["uri"])).contents[0].text.strip() == "1"
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert len(found) == 6
    assert {mode for path, mode in found.items() if path.is_file()} == {0o640}
    assert {mode for path, mode in found.items() if path.is_dir()} == {0o750}


async def test_a_volume_that_is_read_only_stays_so_and_nothing_leads_out_of_one(
    connect: Connect, tmp_path: Path
) -> None:
    (data := tmp_path / "data").mkdir()
    (data / "a.txt").write_text("kept")
    (tmp_path / "secret").write_text("secret")
    (data / "link").symlink_to(tmp_path / "secret")
    async with connect(VOLUMES__DATA=f'{{path = "{data}"}}') as client:
        refused = await call(client, "write_file", path="/volumes/data/a.txt", content="changed")
        assert refused.structured_content["error"]["error_code"] == "PERMISSION_DENIED"
        assert text_of(await call(client, "read_file", path="/volumes/data/a.txt")) == "kept"
        for path in ("/volumes/data/link", "/volumes/data/../secret", "/volumes/data", "/volumes/other/a.txt"):
            refused = await call(client, "read_file", path=path)
            assert refused.is_error, path
            assert "secret" not in text_of(refused).replace(path, "")
        said = text_of(await call(client, "read_file", path="/volumes/data/link"))
        assert said.endswith("- List it with code: os.listdir('/volumes/data').")
        assert "- The volume is /volumes/data." in text_of(refused)
    assert (data / "a.txt").read_text() == "kept"


async def test_a_path_of_the_host_or_a_near_miss_is_answered_with_what_is_shared(
    connect: Connect, tmp_path: Path
) -> None:
    (folder := tmp_path / "shared").mkdir()
    (folder / "Sales 2026.csv").write_text("x")
    elsewhere = ("/Users/me/sales.csv", "/home/me/sales.csv", "C:\\Users\\me\\sales.csv", "~/sales.csv")
    async with connect(VOLUMES__DEFAULT_VOLUME=str(folder)) as client:
        for path in (*elsewhere, "/volumes/shared/sales.csv"):
            said = text_of(await call(client, "execute_code", code=f"open({path!r})"))
            assert "/volumes/shared has: Sales 2026.csv." in said, path
        said = text_of(await call(client, "execute_code", code="open('sales 2026.csv')"))
        assert "[Did you mean /volumes/shared/Sales 2026.csv, in the user's folder?]" in said
        javascript = await call(
            client, "execute_code", code="require('fs').readFileSync('/home/me/a')", language="javascript"
        )
        assert "/volumes/shared has:" in text_of(javascript)
        said = text_of(await call(client, "read_file", path="/volumes/shared/sales 2026.csv"))
        assert "/volumes/shared has: Sales 2026.csv." in said
        assert "has:" not in text_of(await call(client, "execute_code", code="open('other')"))
    async with connect() as client:
        for path in elsewhere:
            said = text_of(await call(client, "execute_code", code=f"open({path!r})"))
            assert "--folder PATH" in said, path
        assert "--folder" not in text_of(await call(client, "execute_code", code="open('other')"))


async def test_a_folder_that_cannot_be_shared_is_refused_with_the_true_reason(
    server_env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    for volume, reason in (
        ("relative", "relative is not an absolute path"),
        (str(tmp_path / "file"), "file is not a directory"),
        (str(tmp_path / "missing"), "missing does not exist"),
    ):
        env = server_env | {"KERNELMCP_VOLUMES__DATA": f'{{path = "{volume}"}}'}
        process = start_server(env=env, stderr=subprocess.PIPE)
        _, said = process.communicate(timeout=DEADLINE)
        assert (process.returncode, reason in said.decode()) == (2, True), said
    process = start_server("serve", "--folder", str(tmp_path / "file"), env=server_env, stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=DEADLINE)
    assert (process.returncode, "file is not a directory" in said.decode()) == (2, True), said


async def test_read_file_reads_each_address_that_a_result_shows(connect: Connect) -> None:
    async with connect() as client:
        result = await call(client, "execute_code", code="for i in range(3000): print(f'{i:05}', 'some words')")
        (address, offset) = re.search(
            r'read_file\("(kernelmcp://\S+/stdout)", offset=(\d+)\)', text_of(result)
        ).groups()
        whole = "".join(f"{i:05} some words\n" for i in range(3000))
        pieces, place = [text_of(result)[: int(offset)]], int(offset)
        while place is not None:
            piece = (await call(client, "read_file", path=address, offset=place)).structured_content
            pieces.append(piece["content"])
            place = piece["next_offset"]
        assert "".join(pieces) == whole
        code = (
            "from IPython.display import Image, display\n"
            f"display(Image({PNG!r}))\nprint('to stderr', file=__import__('sys').stderr)\n"
            "open('a b.txt', 'w').write('content')\n'the result'"
        )
        result = await call(client, "execute_code", code=code)
        session, execution = (result.structured_content[name] for name in ("session_id", "execution_id"))
        shown = await call(client, "read_file", path=f"kernelmcp://executions/{execution}/outputs/0")
        assert [block.type for block in shown.content] == ["text", "image"]
        for address, content in (
            (f"kernelmcp://executions/{execution}/stderr", "to stderr\n"),
            (f"kernelmcp://executions/{execution}/result", "'the result'"),
            (result.structured_content["files_changed"][0]["uri"], "content"),
        ):
            assert (await call(client, "read_file", path=address)).structured_content["content"] == content
        notebook = await call(client, "read_file", path=f"kernelmcp://sessions/{session}/notebook")
        assert text_of(notebook).startswith('{"cells": [')
        missing = await call(client, "read_file", path="kernelmcp://executions/none/stdout")
        assert missing.structured_content["error"]["error_code"] == "EXECUTION_NOT_FOUND"
        missing = await call(client, "read_file", path="kernelmcp://nothing")
        assert missing.structured_content["error"]["error_code"] == "INVALID_ARGUMENT"
