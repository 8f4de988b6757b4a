"""A secret that the settings give to upstreams, looked for in every place that is not an upstream's."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..processes import command_line
from ..server.support import server_of_test
from ..starting import run_kernelmcp
from ..upstreams.conftest import on_stdio
from .support import modelling

pytestmark = pytest.mark.anyio
SECRET, LITERAL = "correct-horse-battery-staple", "tr0ub4dor-and-3-more"

GUEST = """
import os
found = [str(dict(os.environ))]
for top in ('/servers', '/proc', '/etc', '/workspace', '/tmp', '/home'):
    for folder, _, files in os.walk(top):
        for name in files[:200]:
            try:
                found.append(open(os.path.join(folder, name), errors='replace').read(1_000_000))
            except OSError:
                pass
from kernelmcp_guest.servers.pending_calls import call
for server in ('bad', 'literal'):
    for value in ('result', 'error', 'exit'):
        try:
            found.append(str(call(server, 'echo', {'value': value})))
        except Exception as error:
            found.append(str(error))
try:
    call('gone', 'echo', {})
except Exception as error:
    found.append(str(error))
import servers
found += [repr(servers.search('')), str(servers.__doc__), str(__import__('servers.gone').gone.__doc__)]
whole = chr(10).join(found)
print(whole[-4000:])
"""


def settings() -> str:
    given = "default = 'allow'\nenv = { MCP_SECRET = 'Bearer ${CRM_TOKEN}' }"
    literal = f"default = 'allow'\nenv = {{ MCP_SECRET = '{LITERAL}' }}"
    return (
        on_stdio("bad", "hostile_server.py", "tells-its-secret", more=given)
        + on_stdio("literal", "hostile_server.py", "tells-its-secret", more=literal)
        + on_stdio("gone", "hostile_server.py", "exit-with-its-secret", "${CRM_TOKEN}", more=given)
        + "[upstreams.servers.web]\nurl = 'http://127.0.0.1:9/mcp?key=${CRM_TOKEN}'\n"
        + "headers = { Authorization = 'Bearer ${CRM_TOKEN}' }\n"
    )


async def test_a_secret_is_nowhere_but_at_its_upstream(server_env: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    env = {**server_env, "CRM_TOKEN": SECRET}
    more = {"LOGGING__LEVEL": "debug", "LOGGING__FILE": str(log)}
    async with modelling(env, settings(), tmp_path, **more) as one:
        await one.ready("bad", "echo")
        await one.ready("literal", "echo")
        fields = await one.run(GUEST)
        assert fields["status"] == "ok", fields
        assert fields["stdout"].count("(MCP_SECRET)") >= 4, fields["stdout"]
        # All of what it has found, and without saying there what is looked for.
        looked = await one.run(f"[word[::-1] in whole for word in ({SECRET[::-1]!r}, {LITERAL[::-1]!r})]")
        assert looked["result"] == "[False, False]"
        calls = await one.calls(fields["execution_id"])
        assert len(calls) == 7
        seen = [str(fields), str(calls), (await one.call("get_sessions"))[0], str(one.client.instructions)]
        server = server_of_test()
        lines = {child: command_line(child) for child in server.children()}  # none of an upstream that has just ended
        kernels = [one for one, line in lines.items() if line and "hostile_server.py" not in " ".join(line)]
        for process in (each for kernel in kernels for each in (kernel, *kernel.children(recursive=True))):
            seen += [str(process.environ()), str(process.cmdline())]
        await one.audit(7)
    files = [file for file in (*one.home.rglob("*"), log) if file.is_file() and not file.is_symlink()]
    assert any(file.name == "audit.jsonl" for file in files)
    assert log.read_text()
    seen += [file.read_bytes().decode("utf-8", "replace") for file in files if file.stat().st_size < 20_000_000]
    for place in seen:
        assert SECRET not in place
        assert LITERAL not in place


@pytest.mark.parametrize("command", [["list"], ["try", "bad"], ["try", "gone"], ["try", "web"]])
def test_no_command_shows_it_or_obeys_a_terminal(
    server_env: dict[str, str], tmp_path: Path, command: list[str]
) -> None:
    config = tmp_path / "mcp.toml"
    config.write_text(settings())
    env = {**server_env, "CRM_TOKEN": SECRET, "KERNELMCP_CONFIG_FILE": str(config)}
    run = run_kernelmcp("upstreams", *command, env=env)
    said = run.stdout + run.stderr
    assert said
    assert SECRET not in said
    assert LITERAL not in said
    assert "\x1b" not in said
