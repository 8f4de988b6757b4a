"""Calls of tools from the shell and from JavaScript."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kernelmcp_kernel.languages.javascript.language import JavaScript
from kernelmcp_kernel.runtime.build_identity import node_binary
from kernelmcp_kernel.runtime.places import PACKAGE

from .conftest import running_kernel
from .driver import Kernel, Ran, wait_until
from .offerer import Message, Offerer, Tool, failed, offering
from .state_guest import StateGuest
from .test_tools import PIXEL, TOOLS

INDEX: Message = {
    "servers": {
        "crm": {
            "name": "crm",
            "about": "Customers",
            "tools": {name: [name, f"{name}(a)", "Any", f"Does {name}."] for name in ("echo", "raw", "fail", "silent")}
            | {"given_": ["given", "given_(result)", "Any", "What is wanted."]},
            "denied": {"wipe_all": "wipe-all"},
        },
        "hr_2": {"name": "hr-2", "about": "People", "tools": {"echo": ["echo", "echo(a)", "Any", "Says it again."]}},
    }
}

GUEST = PACKAGE / "languages" / "javascript"


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with running_kernel() as running:
        yield running


@pytest.fixture
def offerer(kernel: Kernel, tmp_path: Path) -> Iterator[Offerer]:
    (tmp_path / "index.json").write_text(json.dumps(INDEX))
    tools: dict[str, Tool] = {
        **TOOLS,
        "hr-2.echo": TOOLS["crm.echo"],
        "crm.wipe-all": lambda _: failed("ToolDenied", "not this"),
    }
    with offering(kernel, tmp_path, tools) as running:
        yield running


FAILED = '{"result": {"content": [], "isError": true}}'

# -- the shell


def sh(kernel: Kernel, code: str) -> Ran:
    return kernel.run(f"%%bash --no-raise-error\n{code}")


def test_the_shell_calls_a_tool(kernel: Kernel, offerer: Offerer) -> None:
    assert sh(kernel, 'mcp call crm.echo \'{"a": [1, "ü"]}\'').text() == '{"a": [1, "ü"]}\n'
    assert sh(kernel, "echo '{\"a\": 1}' | mcp call hr_2.echo - | jq .a").text() == "1\n"
    assert sh(kernel, "mcp call hr-2.echo").text() == "{}\n"
    assert sh(kernel, "mcp call crm.raw '{\"a\": 1}'").text() == '{"a": 1}\n'
    called = [(call["server"], call["tool"]) for call in offerer.calls]
    assert called == [("crm", "echo"), ("hr-2", "echo"), ("hr-2", "echo"), ("crm", "raw")]


def test_the_shell_shows_text_and_keeps_pictures_in_files(kernel: Kernel, offerer: Offerer) -> None:
    result = {"content": [{"type": "text", "text": "a"}, {"type": "image", "data": PIXEL, "mimeType": "image/png"}]}
    wanted = json.dumps({"result": result})
    ran = sh(kernel, f"mcp call crm.given '{wanted}'\nmcp call -o pixel.png crm.given '{wanted}'; wc -c < pixel.png")
    assert ran.text().split() == ["a", str(len(base64.b64decode(PIXEL)))]
    assert "mcp call -o FILE" in ran.text("stderr")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ('mcp call crm.fail \'{"kind": "ToolDenied", "message": "no"}\'', "mcp: ToolDenied: no"),
        ('mcp call crm.given \'{"result": {"content": [], "isError": true}}\'', "mcp: ToolError: crm.given: it failed"),
        ('mcp call crm.given \'{"result": {"content": 5}}\'', "mcp: ToolError: its answer is not a tool result"),
        ("mcp call other.echo", "mcp: ToolError: there is no MCP server 'other'; there are: crm, hr-2"),
        ("mcp call crm.echo nonsense", "mcp: the arguments cannot be read as JSON"),
        ("mcp call crm.echo '[]'", "mcp: the arguments must be a JSON object"),
        ("mcp call crm", "usage: mcp list"),
        ("mcp", "usage: mcp list"),
        ("mcp list other", "mcp: there is no MCP server 'other'; there are: crm, hr_2"),
    ],
)
def test_what_goes_wrong_in_the_shell_is_on_stderr(
    kernel: Kernel, offerer: Offerer, command: str, message: str
) -> None:
    ran = sh(kernel, f"{command}\necho $?")
    assert ran.text() == "1\n"
    assert ran.text("stderr").startswith(message)


def test_the_shell_lists_and_searches(kernel: Kernel, offerer: Offerer) -> None:
    assert sh(kernel, "mcp list").text() == "crm: 5 tools. Customers\nhr_2: 1 tools. People\n"
    assert sh(kernel, "mcp list hr-2").text() == "hr-2.echo(a)  # Says it again.\n"
    assert sh(kernel, "mcp search echo again").text().splitlines()[0] == "hr_2.echo(a)  # Says it again."
    assert sh(kernel, "ls /servers; cat /servers/index.json | jq '.servers | length'").text() == "index.json\n2\n"


def test_the_shell_writes_nothing_in_servers(kernel: Kernel, offerer: Offerer) -> None:
    code = "echo x > /servers/new; rm /servers/index.json; mkdir /servers/a; mv /servers/index.json /tmp/; ls /servers"
    assert sh(kernel, code).text() == "index.json\n"


def test_an_interrupt_ends_the_call_of_a_shell(kernel: Kernel, offerer: Offerer) -> None:
    request = kernel.send("%%bash\nstate=1\nmcp call crm.silent")
    assert wait_until(lambda: bool(offerer.calls))
    kernel.interrupt()
    assert kernel.finish(request).error == "KeyboardInterrupt: "
    assert wait_until(lambda: offerer.cancelled == [offerer.calls[0]["id"]])
    assert sh(kernel, "echo $state; mcp call crm.echo").text() == "1\n{}\n"


# -- JavaScript


def js(kernel: Kernel, code: str) -> str:
    """What a cell prints and its result, or its error."""
    ran = kernel.run(f"%%js\n{code}")
    return ran.text() + (ran.result or "") + (ran.error if ran.status == "error" else "")


def test_javascript_calls_a_tool(kernel: Kernel, offerer: Offerer) -> None:
    assert js(kernel, "await callMCPTool('crm.echo', {a: [1, 'ü'], b: null})") == "{ a: [ 1, 'ü' ], b: null }"
    assert js(kernel, "await servers.hr_2.echo({a: 1})") == "{ a: 1 }"
    assert js(kernel, "await servers.crm.raw({a: 1})") == "{ a: 1 }"
    assert js(kernel, "await callMCPTool('raw')") == "{}"
    assert [(call["server"], call["tool"]) for call in offerer.calls][1] == ("hr-2", "echo")


def test_javascript_calls_many_at_once(kernel: Kernel, offerer: Offerer) -> None:
    code = "const all = await Promise.all([...Array(500).keys()].map((a) => servers.crm.echo({a})));"
    assert js(kernel, f"{code}\nall.every((each, at) => each.a === at)") == "true"
    assert len(offerer.calls) == 500
    assert len(offerer.requests) < 100, "they leave together"


def test_a_request_and_a_call_that_are_answered_together(tmp_path: Path) -> None:
    with closing(StateGuest(tmp_path / "sandbox", language=JavaScript)) as guest:
        (guest.offered / "index.json").write_text(json.dumps(INDEX))
        guest.begin(
            "(await Promise.allSettled([fetch('http://x.org'), servers.crm.echo({})])).map((one) => one.status)"
        )
        numbers = [guest.wait_for("call")["number"] for _ in range(2)]
        guest.send_together(
            *({"op": "result", "content": {"number": number, "error": "refused"}} for number in numbers)
        )
        assert guest.finish() == "[ 'rejected', 'rejected' ]"


def test_javascript_gets_values(kernel: Kernel, offerer: Offerer) -> None:
    def given(result: Message) -> str:
        return js(kernel, f"await servers.crm.given_({json.dumps({'result': result})})")

    picture = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    assert given({"content": [], "structuredContent": None}) == "null"
    assert given({"content": [{"type": "text", "text": "a"}]}) == "'a'"
    assert given({"content": []}) == "[]"
    assert "mimeType: 'image/png'" in given({"content": [picture]})
    assert given({"content": [], "structuredContent": {"__proto__": {"a": 1}}}) != ""
    assert js(kernel, "({}).a") == ""


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        ("servers.crm.fail({kind: 'ToolDenied', message: 'no'})", "ToolDenied", "no"),
        ("servers.crm.given_({result: {content: [], isError: true}})", "ToolError", "crm.given_: it failed"),
        ("servers.crm.given_({result: {content: 5}})", "ToolError", "crm.given_: its answer is not a tool result"),
        ("servers.crm.wipe_all({})", "ToolDenied", "not this"),
        ("callMCPTool('wipe-all')", "ToolDenied", "not this"),
        ("callMCPTool('crm.nothing')", "ToolError", "there is no tool 'crm.nothing'"),
        ("servers.crm.nothing({})", "ToolError", "there is no tool 'crm.nothing'"),
        ("callMCPTool('echo')", "ToolError", "several servers have a tool 'echo': crm.echo, hr_2.echo"),
    ],
)
def test_an_error_of_javascript_says_its_kind(
    kernel: Kernel, offerer: Offerer, call: str, kind: str, message: str
) -> None:
    caught = "error instanceof Error ? [error.kind, error.message] : error"
    found = js(kernel, f"await {call}.catch((error) => JSON.stringify({caught}))")
    assert found.startswith(f'\'["{kind}","'), found
    assert message in found.replace("\\'", "'")
    assert js(kernel, f"await {call}").startswith(f"{kind}: {message}")


def test_javascript_finds_what_there_is(kernel: Kernel, offerer: Offerer) -> None:
    assert js(kernel, "Object.keys(servers)") == "[ 'crm', 'hr_2', 'search' ]"
    assert (
        js(
            kernel,
            "[servers.no, 'no' in servers.crm, 'echo' in servers.crm, servers.then, (await servers.crm).then]",
        )
        == "[ undefined, false, true, undefined, undefined ]"
    )
    assert (
        js(kernel, "console.log(servers.search('echo again').split('\\n')[0])")
        == "servers.hr_2.echo(a)  // Says it again.\n"
    )
    assert js(kernel, "require('fs').readdirSync('/servers')") == "[ 'index.json' ]"
    assert "EROFS" in js(kernel, "require('fs').writeFileSync('/servers/x', 'x')")


def test_a_server_without_tools_says_why_in_both(kernel: Kernel, tmp_path: Path) -> None:
    why = "late is not available: the environment variable API_KEY is not set; the user can find out why"
    index = {"servers": {"late": {"name": "late", "about": why, "tools": {}}}}
    (tmp_path / "index.json").write_text(json.dumps(index))
    with offering(kernel, tmp_path, {}):
        said = f"late has no tools now: {why}"
        assert js(kernel, "await servers.late.get({})").startswith(f"ServerUnavailable: {said}")
        assert sh(kernel, "mcp list late").text() == f"{said}\n"


def test_servers_that_are_being_connected_are_told_in_one_line(kernel: Kernel, tmp_path: Path) -> None:
    late = {f"late{number}": {"name": f"late{number}", "about": "", "tools": {}} for number in range(2)}
    crm = {"name": "crm", "about": "Customers", "tools": {"echo": ["echo", "echo(a)", "", "Says it again."]}}
    index = {"servers": {**late, "crm": crm}, "connecting": list(late), "note": "2 of 3 are being connected"}
    (tmp_path / "index.json").write_text(json.dumps(index))
    with offering(kernel, tmp_path, {}):
        assert sh(kernel, "mcp list").text() == "crm: 1 tools. Customers\n2 of 3 are being connected\n"
        assert sh(kernel, "mcp search echo").text() == "crm.echo(a)  # Says it again.\n2 of 3 are being connected\n"
        found = "servers.crm.echo(a)  // Says it again.\n2 of 3 are being connected\n"
        assert js(kernel, "console.log(servers.search('echo'))") == found
        assert 'words") finds tools; 2 of 3 are being connected' in js(kernel, "await callMCPTool('x')")


def test_without_an_offer_both_say_so(kernel: Kernel) -> None:
    assert "no MCP servers are offered to this kernel" in js(kernel, "await callMCPTool('crm.echo')")
    assert sh(kernel, "mcp call crm.echo").text("stderr") == "mcp: no MCP servers are offered to this kernel\n"


def test_an_interrupt_ends_the_calls_of_javascript(kernel: Kernel, offerer: Offerer) -> None:
    request = kernel.send("%%js\nvar state = 1; await Promise.all([1, 2].map((a) => servers.crm.silent({a})))")
    assert wait_until(lambda: len(offerer.calls) == 2)
    kernel.interrupt()
    assert kernel.finish(request).error == "KeyboardInterrupt: "
    assert wait_until(lambda: sorted(offerer.cancelled) == [call["id"] for call in offerer.calls])
    assert js(kernel, "[state, await servers.crm.echo({})]") == "[ 1, {} ]"


def test_what_goes_on_after_calls_that_an_interrupt_ended_ends_too(kernel: Kernel, offerer: Offerer) -> None:
    js(kernel, "var kept = 1")
    calls = "[1, 2].map((a) => servers.crm.silent({a}).catch(() => { for (;;); }))"
    request = kernel.send(f"%%js\nawait Promise.all({calls})")
    assert wait_until(lambda: len(offerer.calls) == 2)
    kernel.interrupt()
    assert kernel.finish(request).error == "KeyboardInterrupt: "
    ran = kernel.run("%%js\nkept")
    assert (ran.result, ran.text("stderr")) == ("1", "")


IS_ENDING_WHEN_AN_ANSWER_COMES = f"""
import {{ Engine }} from "{GUEST}/engine.mjs";
import {{ Realm }} from "{GUEST}/realm.mjs";
import {{ makeServices }} from "{GUEST}/services.mjs";
let isEnding = false;
let answer;
const ask = () => new Promise((resolve) => (answer = resolve));
const realm = new Realm(await Engine.make(), makeServices({{ ask }}).all, () => isEnding, () => undefined);
realm.evaluate("let state = 'pending'; fetch('http://x').catch(() => (state = 'ended'));", "cell");
isEnding = true;
try {{
  realm.evaluate("for (;;);", "cell"); // from now on QuickJS asks at each step
}} catch {{
  answer({{ error: "interrupted" }});
}}
await new Promise((resolve) => setImmediate(resolve));
isEnding = false;
realm.runJobs();
console.log(realm.call("inspect", realm.evaluate("state", "cell")));
"""


def test_an_answer_comes_while_all_is_to_end() -> None:
    command = [str(node_binary()), "--input-type=module", "-e", IS_ENDING_WHEN_AN_ANSWER_COMES]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120, text=True)
    assert (done.stdout, done.stderr[-500:]) == ("'ended'\n", "")


COUNTS_ITS_MEMORY = f"""
import {{ Engine }} from "{GUEST}/engine.mjs";
const {{ runtime }} = await Engine.make();
const objects = () => /objects +(\\d+)/.exec(runtime.dumpMemoryUsage())[1];
const before = objects();
runtime.computeMemoryUsage().dispose();
console.log(objects() === before);
"""


def test_the_memory_is_counted_without_another_context() -> None:
    command = [str(node_binary()), "--input-type=module", "-e", COUNTS_ITS_MEMORY]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120, text=True)
    assert (done.stdout, done.stderr[-500:]) == ("true\n", "")
