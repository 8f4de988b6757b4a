"""The same behaviour over each way to reach a server, in both eras of the protocol."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from kernelmcp.config.load import load
from kernelmcp.upstreams.catalogue import UpstreamError
from kernelmcp.upstreams.catalogue_store import CatalogueStore
from kernelmcp.upstreams.upstreams import Upstreams

from .conftest import Opened, Started, on_stdio, ready, until

pytestmark = pytest.mark.anyio
WAYS = ["stdio", "stdio legacy", "http", "http legacy", "http json", "sse"]


@pytest.fixture(params=WAYS)
def crm(request: pytest.FixtureRequest, started: Started) -> str:
    """The lines of mcp.toml for the CRM."""
    way, _, more = request.param.partition(" ")
    options = [f"--{more}"] if more else []
    if way == "stdio":
        return on_stdio("crm", "crm_server.py", *options)
    path = "/sse" if way == "sse" else "/mcp"
    return f'[upstreams.servers.crm]\nurl = "{started("crm_server.py", f"--{way}", "0", *options, path=path)}"\n'


async def call(upstreams: Upstreams, tool: str, seconds: float = 60.0, **arguments: Any) -> dict[str, Any]:
    result = await upstreams.tool_call("crm", tool, arguments, timeout_seconds=seconds)
    if result.raw is not None:
        assert result.value is None
        assert result.size == len(result.raw)
        return json.loads(result.raw)
    assert result.value is not None
    assert result.is_error == (result.value.get("isError") is True)
    return result.value


async def stats(upstreams: Upstreams) -> dict[str, int]:
    return (await call(upstreams, "stats"))["structuredContent"]


async def test_what_it_offers_and_answers(opened: Opened, crm: str) -> None:
    async with opened(crm) as upstreams:
        assert upstreams.names == ["crm"]
        await ready(upstreams, "crm")
        catalogue = upstreams.catalogue("crm")
        assert catalogue is not None
        assert (catalogue.title, catalogue.version, catalogue.instructions) == ("crm", "1.0", "Customer records.")
        assert len(catalogue.tools) == upstreams.status("crm").tools == 60
        read, gone = catalogue.tool("get_deal"), catalogue.tool("delete_deal")
        assert read is not None
        assert gone is not None
        assert (read.read_only, read.destructive, gone.read_only, gone.destructive) == (True, None, False, True)
        assert read.input_schema["required"] == ["id"]
        assert read.output_schema is not None
        assert (await call(upstreams, "get_deal", id="deal_4"))["structuredContent"]["name"] == "Deal number 4"
        # Above the size at which results are not parsed.
        page = (await call(upstreams, "list_deals", page_size=500))["structuredContent"]
        assert [row["id"] for row in page["items"]] == [f"deal_{number}" for number in range(500)]
        kinds = [block["type"] for block in (await call(upstreams, "picture"))["content"]]
        assert kinds == ["text", "image", "audio", "resource", "resource_link"]


async def test_errors_are_of_their_class_and_say_what_the_server_says(opened: Opened, crm: str) -> None:
    async with opened(crm) as upstreams:
        failed = await call(upstreams, "fail")
        assert (failed["isError"], failed["content"][0]["text"]) == (True, "the record is locked by user_3")
        # The work was done: what it declares and does not return is no error.
        assert (await call(upstreams, "lies-about.output"))["content"][0]["text"] == "no structure"
        for tool, words in (("nothing", "Unknown tool: nothing"), ("ask_user", "licit"), ("ask_model", "ampling")):
            with pytest.raises(UpstreamError, match=words) as caught:
                await call(upstreams, tool)
            assert caught.value.kind == "ToolError"
            assert caught.value.message.startswith(f"crm.{tool}: ")
        with pytest.raises(UpstreamError, match="there is no MCP server 'crn'"):
            await upstreams.tool_call("crn", "echo", {}, timeout_seconds=1)


async def test_calls_at_one_time_and_odd_values(opened: Opened, crm: str) -> None:
    values = [None, 0, [], "\u2028\0\U0001f600", {"$": {"a": [1.5, True]}}, 2**60, "x" * 100_000]

    async with opened(crm) as upstreams:

        async def one(value: object) -> None:
            assert json.loads((await call(upstreams, "echo", value=value))["content"][0]["text"]) == value

        async with anyio.create_task_group() as tasks:
            for value in values * 10:
                tasks.start_soon(one, value)
        assert (await stats(upstreams))["received"] == 10 * len(values) + 1


async def test_arguments_that_are_no_json_fail_alone(opened: Opened, crm: str) -> None:
    deep: object = 1
    for _ in range(300):
        deep = [deep]
    async with opened(crm) as upstreams:
        await ready(upstreams, "crm")
        for one in (float("nan"), [float("-inf")], {"a": ["\ud800"]}, {"\udfff": 1}, object(), deep):
            with pytest.raises(UpstreamError, match="its arguments cannot be sent") as caught:
                await call(upstreams, "echo", value=one)
            assert caught.value.kind == "ToolError"
        assert (await stats(upstreams))["received"] == 1


async def test_a_cancelled_and_a_late_call_are_cancelled_there(
    opened: Opened, crm: str, request: pytest.FixtureRequest
) -> None:
    async with opened(crm) as upstreams:
        await ready(upstreams, "crm")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, upstreams, "slow", 60.0)
            while (await stats(upstreams))["under_way"] < 1:  # noqa: ASYNC110  # only it knows
                await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
        with pytest.raises(UpstreamError, match=r"crm\.slow did not answer within 3 s") as caught:
            await upstreams.tool_call("crm", "slow", {"seconds": 60}, timeout_seconds=3)
        assert caught.value.kind == "ToolTimeout"
        if "http json" not in request.node.name:  # such a server does not look whether anybody waits
            while (await stats(upstreams))["cancelled"] < 2:  # noqa: ASYNC110  # only it knows
                await anyio.sleep(0.05)
        assert (await call(upstreams, "echo", value=1))["content"]


async def test_news_of_tools_arrives(opened: Opened, crm: str) -> None:
    async with opened(crm) as upstreams:
        await ready(upstreams, "crm")
        heard: list[str] = []
        upstreams.on_change(heard.append)
        await call(upstreams, "add_tool")
        await until(lambda: upstreams.status("crm").tools == 61)
        assert set(heard) == {"crm"}
        assert upstreams.changed_tools("crm") == {"added_60": "new"}


async def test_a_result_that_is_too_large_is_an_error_that_says_the_setting(opened: Opened, crm: str) -> None:
    async with opened(f"[upstreams]\nresult_mb = 4\n{crm}") as upstreams:
        assert len((await call(upstreams, "big", mb=4.125))["content"][0]["text"]) == 4_125_000
        for size in (4.3, 20):
            with pytest.raises(UpstreamError, match=r"more than the 4 MB .*upstreams\.result_mb") as caught:
                await call(upstreams, "big", mb=size)
            assert caught.value.kind == "LimitExceeded"
        assert (await call(upstreams, "echo", value=1))["content"]


async def test_arguments_that_are_too_large_for_a_server_are_said_to_be(opened: Opened, crm: str) -> None:
    """Servers over HTTP take a few MB; 8 MiB is what ours passes on at most."""
    async with opened(crm) as upstreams:
        before = (await stats(upstreams))["pid"]
        if "url" in crm:
            with pytest.raises(UpstreamError, match="HTTP 413") as caught:
                await call(upstreams, "create_ticket", name="n" * 8_000_000)
            # On the older transport answers come elsewhere: the connection is begun anew, or calls would wait for ever.
            assert caught.value.kind == ("ServerUnavailable" if "/sse" in crm else "LimitExceeded")
        else:
            made = await call(upstreams, "create_ticket", name="n" * 8_000_000)
            assert len(made["structuredContent"]["name"]) == 8_000_000
        assert (await stats(upstreams))["pid"] == before


async def test_the_next_call_waits_for_the_connection_that_was_lost(opened: Opened) -> None:
    async with opened(on_stdio("crm", "crm_server.py")) as upstreams:
        before = (await stats(upstreams))["pid"]
        with pytest.raises(UpstreamError, match="was lost while it worked on die: it ended with status 3") as caught:
            await call(upstreams, "die")
        assert caught.value.kind == "ServerUnavailable"
        assert (await stats(upstreams))["pid"] != before


async def test_only_what_reads_is_called_again(opened: Opened) -> None:
    """A call that was lost may have done its work."""
    async with opened(on_stdio("crm", "crm_server.py")) as upstreams:
        await ready(upstreams, "crm")
        outcomes: dict[str, object] = {}

        async def kept(tool: str, **arguments: Any) -> None:
            try:
                outcomes[tool] = (await call(upstreams, tool, **arguments))["structuredContent"]["id"]
            except UpstreamError as exc:
                outcomes[tool] = exc.kind

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kept, "die")
            for tool, arguments in (("get_deal", {"id": "deal_1"}), ("create_deal", {"name": "new"})):

                async def one(tool: str = tool, arguments: dict[str, Any] = arguments) -> None:
                    await kept(tool, **arguments)

                tasks.start_soon(one)
        assert outcomes == {"die": "ServerUnavailable", "get_deal": "deal_1", "create_deal": "ServerUnavailable"}


async def test_a_session_that_the_server_forgot_is_begun_anew(opened: Opened, started: Started, tmp_path: Path) -> None:
    url = started("crm_server.py", "--http", "0", "--legacy")
    async with opened(f'[upstreams.servers.crm]\nurl = "{url}"\n') as upstreams:
        assert (await call(upstreams, "create_deal", name="new"))["structuredContent"]["id"] == "deal_1000"
        port = url.partition("//")[2].partition("/")[0].partition(":")[2]
        with pytest.raises(UpstreamError):
            await call(upstreams, "die")
        await until(lambda: not _is_there(int(port)))
        started("crm_server.py", "--http", port, "--legacy")
        assert (await call(upstreams, "create_deal", name="new"))["structuredContent"]["id"] == "deal_1000"


def _is_there(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_what_it_offered_last_time_is_there_at_once_and_for_that_server_only(opened: Opened) -> None:
    toml = on_stdio("crm", "crm_server.py")
    async with opened(toml) as upstreams:
        await ready(upstreams, "crm")
        known = upstreams.catalogue("crm")
    hanging = toml.replace("crm_server.py'", "crm_server.py', '--never'")
    async with opened(toml) as upstreams:
        assert upstreams.status("crm").state == "connecting"
        assert upstreams.catalogue("crm") == known
    async with opened(hanging) as upstreams:
        assert upstreams.catalogue("crm") is None


async def test_pins_are_kept_until_a_person_accepts(opened: Opened, tmp_path: Path) -> None:
    toml = on_stdio("crm", "crm_server.py")
    async with opened(toml) as upstreams:
        await ready(upstreams, "crm")
        assert upstreams.changed_tools("crm") == {}
    pins = tmp_path / "home" / "upstreams" / "pins" / "crm.json"
    accepted = json.loads(pins.read_text())
    assert len(accepted) == 60
    pins.write_text(json.dumps({**accepted, "get_deal": "other"} | {}))
    async with opened(toml) as upstreams:
        await ready(upstreams, "crm")
        assert upstreams.changed_tools("crm") == {"get_deal": "changed"}
        CatalogueStore(pins.parents[1]).keep_pins("crm", accepted)  # as `kernelmcp upstreams try crm --accept` does
        assert upstreams.changed_tools("crm") == {}
    assert json.loads(pins.read_text()) == accepted
    assert pins.stat().st_mode & 0o777 == 0o600


async def test_calls_end_with_a_server_that_the_settings_take_out(opened: Opened, tmp_path: Path) -> None:
    mute = f"[upstreams.servers.mute]\ncommand = {sys.executable!r}\nargs = ['-c', 'import sys; sys.stdin.read()']\n"
    async with opened(on_stdio("crm", "crm_server.py") + mute) as upstreams:
        await ready(upstreams, "crm")
        ends: dict[str, UpstreamError] = {}

        async def one(name: str, tool: str) -> None:
            with pytest.raises(UpstreamError) as caught:
                await upstreams.tool_call(name, tool, {"seconds": 3000}, timeout_seconds=3000)
            ends[name] = caught.value

        async with anyio.create_task_group() as tasks:
            for name in ("crm", "mute"):  # which works on it, which is not connected yet
                tasks.start_soon(one, name, "slow")
            while not (await stats(upstreams))["under_way"]:  # noqa: ASYNC110  # only it knows
                await anyio.sleep(0.02)
            (tmp_path / "mcp.toml").write_text("")
            await upstreams.apply(load(tmp_path / "mcp.toml", environ={"KERNELMCP_HOME": str(tmp_path / "home")}))
        assert {name: exc.kind for name, exc in ends.items()} == dict.fromkeys(("crm", "mute"), "ServerUnavailable")
        assert all("its settings changed, or it was removed" in exc.message for exc in ends.values())


async def test_changed_settings_touch_only_what_changed(opened: Opened, tmp_path: Path) -> None:
    first, second = on_stdio("first", "crm_server.py"), on_stdio("second", "crm_server.py")
    async with opened(first + second) as upstreams:

        async def pid(name: str) -> int:
            value = (await upstreams.tool_call(name, "stats", {}, timeout_seconds=60)).value
            assert value is not None
            return value["structuredContent"]["pid"]

        pids = {name: await pid(name) for name in ("first", "second")}
        heard: list[str] = []
        upstreams.on_change(heard.append)

        async def change(toml: str) -> None:
            (tmp_path / "mcp.toml").write_text(toml)
            await upstreams.apply(load(tmp_path / "mcp.toml", environ={"KERNELMCP_HOME": str(tmp_path / "home")}))

        # A rule needs no new connection.
        await change(first + second + "tools = { get_deal = 'deny' }\n")
        assert upstreams.settings("second").tools == {"get_deal": "deny"}
        assert (heard, {name: await pid(name) for name in pids}) == (["second"], pids)

        await change(first + second + "env = { A = 'b' }\n" + on_stdio("third", "crm_server.py"))
        assert upstreams.names == ["first", "second", "third"]
        assert await pid("first") == pids["first"]
        assert await pid("second") != pids["second"]
        assert await pid("third")

        await change(first + second + "disabled = true\n")
        assert (upstreams.names, upstreams.status("second").state) == (["first", "second"], "disabled")
        assert upstreams.catalogue("second") is None
        with pytest.raises(UpstreamError, match="is disabled"):
            await pid("second")
        assert await pid("first") == pids["first"]
