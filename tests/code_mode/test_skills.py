"""A promoted skill, from the session that wrote it to the others of its user, through a real server."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from ..server.support import DEADLINE, Connect
from ..starting import python_command, run_kernelmcp

pytestmark = pytest.mark.anyio

CRM = Path(__file__).parents[1] / "upstreams" / "crm_server.py"
SKILL = '"""Totals of deals."""\ndef total(n):\n    return n * 2\ndef test_total():\n    assert total(2) == 4\n'
WRITE = f"import os\nos.makedirs('/workspace/skills')\nopen('/workspace/skills/totals.py', 'w').write({SKILL!r})"


async def run(client: Client, session: str, code: str) -> dict[str, Any]:
    result = await client.call_tool("execute_code", {"code": code, "session_id": session})
    assert result.structured_content is not None
    return result.structured_content


async def until_imported(client: Client, session: str) -> dict[str, Any]:
    """What comes of the import, once the session has the skill."""
    with anyio.fail_after(DEADLINE):
        while True:
            found = await run(client, session, "from skills import totals\n(totals.total(3), totals.__file__)")
            if found["error"] is None:
                return found
            # Or ImportError: the package is there, and its files are being put into it.
            assert found["error"]["name"] in ("ModuleNotFoundError", "ImportError")


def command(environment: dict[str, str], *arguments: str) -> str:
    """`kernelmcp skills` as a person runs it."""
    done = run_kernelmcp("skills", *arguments, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("with_upstreams", [True, False])
async def test_a_promoted_skill_is_in_living_and_new_sessions(
    connect: Connect, server_env: dict[str, str], with_upstreams: bool
) -> None:
    program, *arguments = python_command(CRM)
    upstreams = {"crm": {"command": program, "args": arguments}} if with_upstreams else {}
    async with connect(UPSTREAMS__SERVERS=json.dumps(upstreams)) as client:
        await run(client, "writes", WRITE)
        assert (await run(client, "living", "import skills"))["error"]["name"] == "ModuleNotFoundError"
        assert SKILL.strip() in await anyio.to_thread.run_sync(
            command, server_env, "promote", "writes", "totals", "--yes"
        )
        for session in ("living", "new"):
            found = await until_imported(client, session)
            assert found["result"] == "(6, '/servers/skills/totals.py')"
        tested = await run(client, "new", "import servers\nservers.test_skills()")
        assert tested["result"] == "skills.totals: 1 passed"
        refused = await run(client, "new", "open('/servers/skills/totals.py', 'w')")
        assert refused["error"]["name"] in ("OSError", "PermissionError")
        # The session's own comes first, and the others have what a person has seen.
        await run(client, "writes", "open('/workspace/skills/totals.py', 'a').write('def total(n): return 0')")
        assert (await run(client, "new", "totals.total(3)"))["result"] == "6"
    assert "totals" in command(server_env, "list")
