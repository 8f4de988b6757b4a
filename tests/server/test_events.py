"""`event` and `return_value`, prompts, notifications: through a real client."""

from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import ResourceListChangedNotification, ResourceUpdatedNotification

from ..starting import over_stdio
from .support import DEADLINE, Connect

pytestmark = pytest.mark.anyio
# For handlers that would run forever: until then they take all that a processor has.
SHORT_SECONDS = 1


async def call(client: Client, tool: str, **arguments: object) -> dict:
    return (await client.call_tool(tool, arguments)).structured_content


async def test_a_handler_gets_the_event_and_its_value_comes_back(connect: Connect) -> None:
    async with connect() as client:
        event = {"n": 20, "text": 'it\'s "quoted" \\ \n ü €', "nested": [1, None, True, {"a": 1.5}]}
        code = "def handler(event, context):\n    print('called')\n    return {'event': event, 'context': context}"
        result = await client.call_tool("execute_code", {"code": code, "event": event, "timeout": 30})
        content = result.structured_content
        assert (content["status"], content["stdout"], content["return_value"]["event"]) == ("ok", "called\n", event)
        assert content["return_value"]["context"] == {
            "session_id": content["session_id"],
            "execution_id": content["execution_id"],
            "timeout_seconds": 30,
        }
        assert "return_value: {" in result.content[0].text
        again = await call(client, "execute_code", code="", event={"n": 1})
        assert again["return_value"]["event"] == {"n": 1}, "the handler of an earlier cell serves, too"
        assert "return_value" not in await call(client, "execute_code", code="1")


@pytest.mark.parametrize(
    ("language", "code"),
    [
        (
            "python",
            "import asyncio\nasync def handler(event, context):\n    await asyncio.sleep(0)\n    return [event]",
        ),
        ("javascript", "function handler(event, context) { return [event] }"),
        ("javascript", "export default async (event) => { await null; return [event] }"),
        ("javascript", "await null; export default function named(event) { return [event] }"),
        ("javascript", "export const handler = async (event) => [event]"),
    ],
)
async def test_a_handler_may_be_asynchronous_and_of_another_language(
    connect: Connect, kernelspec: str, language: str, code: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("needs a kernel that waits for a coroutine, and its languages")
    async with connect() as client:
        event = {"text": 'it\'s "quoted" \\ \n ü € 😀 \u2028', "nested": [1, None, True, {"a": 1.5}]}
        result = await client.call_tool("execute_code", {"code": code, "language": language, "event": event})
        assert result.structured_content["return_value"] == [event], result.content


@pytest.mark.parametrize(
    ("language", "code", "line"),
    [
        ("python", "x = 1\n\ndef handler(event, context):\n    return 1 / 0", "----> 4     return 1 / 0"),
        ("python", "async def handler(event, context):\n    1 / 0", "----> 2     1 / 0"),
        ("javascript", "\nfunction handler(event) {\n  missing(event)\n}", "at handler (cell 1:3:3)"),
        ("javascript", "\nasync function handler(event) {\n  missing(event)\n}", "at handler (cell 1:3:3)"),
    ],
)
async def test_a_handler_that_fails_shows_its_line_and_none_of_ours(
    connect: Connect, kernelspec: str, language: str, code: str, line: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernel has its own way with user_expressions")
    async with connect() as client:
        result = await client.call_tool("execute_code", {"code": code, "language": language, "event": {}})
        text = result.content[0].text
        assert line in text
        assert text.count(line) == 1
        assert "stderr" not in text
        assert "user_expressions" not in text


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("1", "must define a function handler"),
        ("handler = () => 10n", "BigInt"),
        ("function handler() { return 'x'.repeat(1e6) }", "file"),
        ("function handler() { return '\\ud800' }", "surrogates"),
        ("function handler() { let v = 0; for (let i = 0; i < 300; i++) v = [v]; return v }", "nested"),
        ("function handler() { for (;;) {} }", "time limit"),
        ("async function handler() { await new Promise(done => setTimeout(done, 1e9)) }", "time limit"),
        ("function handler() {}\nglobalThis.btoa = () => '!!'", "not usable"),
        ("function handler() {}\nJSON.stringify = () => { throw new Error('mine') }", "mine"),
    ],
)
async def test_a_handler_of_javascript_that_fails_is_an_error_result(connect: Connect, code: str, words: str) -> None:
    async with connect() as client:
        timeout = SHORT_SECONDS if words == "time limit" else 5
        arguments = {"code": code, "language": "javascript", "event": {}, "timeout": timeout}
        result = await client.call_tool("execute_code", arguments)
        assert result.is_error
        assert result.structured_content["return_value"] is None
        assert words in result.content[0].text
        again = {"code": "1 + 1", "language": "javascript"}
        assert (await client.call_tool("execute_code", again)).structured_content["result"] == "2"


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        ("1", "NameError", "must define a function handler"),
        ("def handler(event, context): return 1 / 0", "ZeroDivisionError", "division"),
        ("def handler(event, context): return object()", "TypeError", "JSON"),
        ("def handler(event, context): return float('nan')", "ValueError", "JSON"),
        ("def handler(event, context): return 'x' * 10**6", "ReturnValueTooLarge", "file"),
        ("def handler(event, context): return {'\\udc00': 1}", "ReturnValueError", "surrogates"),
        (
            "def handler(event, context):\n    v = 0\n    for i in range(300): v = [v]\n    return v",
            "ReturnValueError",
            "nested",
        ),
        ("1/0\ndef handler(event, context): return 1", "ZeroDivisionError", "division"),
        ("def handler(event, context):\n    while True: pass", "Interrupted", "time limit"),
        (
            "import asyncio\nasync def handler(event, context): await asyncio.sleep(1e9)",
            "Interrupted",
            "time limit",
        ),
        (
            "import base64\nbase64.b64encode = lambda b: b'!!'\ndef handler(event, context): pass",
            "ReturnValueError",
            "",
        ),
    ],
)
async def test_a_handler_that_fails_is_an_error_result(connect: Connect, code: str, name: str, words: str) -> None:
    async with connect() as client:
        timeout = SHORT_SECONDS if words == "time limit" else 5
        result = await client.call_tool("execute_code", {"code": code, "event": {}, "timeout": timeout})
        content = result.structured_content
        assert result.is_error
        assert not content["success"]
        assert content["status"] == ("timeout" if name == "Interrupted" else "error")
        assert content["return_value"] is None
        assert content["error"]["name"] in (name, "KeyboardInterrupt"), content["error"]
        assert words in content["error"]["value"] or name == "Interrupted"
        assert (await call(client, "execute_code", code="1 + 1"))["result"] == "2"


async def test_the_prompts_are_listed_and_filled_in(connect: Connect) -> None:
    async with connect() as client:
        prompts = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
        assert set(prompts) == {"analyze_file", "continue_session"}
        assert all(prompt.title and prompt.description for prompt in prompts.values())
        filled = await client.get_prompt("analyze_file", {"path": "data.csv"})
        assert "'data.csv'" in filled.messages[0].content.text
        for name in ("analyze_file", "no such prompt"):
            with pytest.raises(MCPError, match=r"path|no such prompt"):
                await client.get_prompt(name, {})


async def test_a_modern_client_listens_to_changes(connect: Connect) -> None:
    async with connect("2026-07-28") as client:
        uri = "kernelmcp://sessions/s/notebook"
        async with client.listen(resources_list_changed=True, resource_subscriptions=[uri]) as events:
            await call(client, "execute_code", code="1", session_id="s")
            seen: set[str] = set()
            with anyio.fail_after(DEADLINE):
                async for event in events:
                    seen.add(type(event).__name__ + getattr(event, "uri", ""))
                    if seen == {"ResourcesListChanged", f"ResourceUpdated{uri}"}:
                        break
        listed = {str(resource.uri) for resource in (await client.list_resources()).resources}
        assert {"kernelmcp://sessions", "kernelmcp://sessions/s", uri} <= listed


async def test_an_older_client_is_notified_of_what_it_subscribed_to(
    server_env: dict[str, str],
) -> None:
    got: list[Any] = []

    async def on_message(message: Any) -> None:
        got.append(message)

    server = over_stdio(env=server_env)
    with anyio.fail_after(DEADLINE):
        async with Client(server, mode="legacy", message_handler=on_message) as client:
            assert client.server_capabilities.resources.subscribe
            assert client.server_capabilities.resources.list_changed
            await client.list_resources()
            await client.subscribe_resource("kernelmcp://sessions/s")
            await call(client, "execute_code", code="1", session_id="s")
            await call(client, "execute_code", code="1", session_id="other")

            def uris() -> set[str]:
                return {str(one.params.uri) for one in got if isinstance(one, ResourceUpdatedNotification)}

            while not (any(isinstance(one, ResourceListChangedNotification) for one in got) and uris()):
                await anyio.lowlevel.checkpoint()
            assert uris() == {"kernelmcp://sessions/s"}
            for number in range(2):
                await call(client, "execute_code", code=str(number), session_id="s")
            await client.call_tool("destroy_session", {"session_id": "s"})
            lists = sum(isinstance(one, ResourceListChangedNotification) for one in got)
            await call(client, "create_session", session_id="last")  # its news comes after all others
            while sum(isinstance(one, ResourceListChangedNotification) for one in got) == lists:
                await anyio.lowlevel.checkpoint()
            # Made, three cells, destroyed: one each at most, for what waits is not said twice.
            assert sum(isinstance(one, ResourceUpdatedNotification) for one in got) <= 5

            for number in range(255):
                await client.subscribe_resource(f"kernelmcp://sessions/n{number}")
            await client.subscribe_resource("kernelmcp://sessions/n0")
            with pytest.raises(MCPError, match="at most 256"):
                await client.subscribe_resource("kernelmcp://sessions/one-more")
            await client.unsubscribe_resource("kernelmcp://sessions/n0")
            await client.subscribe_resource("kernelmcp://sessions/one-more")


async def test_a_client_that_sets_a_level_is_told_of_its_executions_from_there_on(server_env: dict[str, str]) -> None:
    got: list[Any] = []

    async def on_log(params: Any) -> None:
        got.append((params.level, params.data))

    server = over_stdio(env=server_env)
    with anyio.fail_after(DEADLINE):
        async with Client(server, mode="legacy", logging_callback=on_log) as client:
            await call(client, "execute_code", code="'unasked'")
            await client.session.set_logging_level("info")
            ran = await call(client, "execute_code", code="'a secret'")
            await client.session.set_logging_level("warning")
            await call(client, "execute_code", code="1")
            slow = await call(client, "execute_code", code="import time; time.sleep(1000)", timeout=0.1)
            while len(got) < 2:
                await anyio.lowlevel.checkpoint()
    assert [(level, data["execution"], data["status"]) for level, data in got] == [
        ("info", ran["execution_id"], "ok"),
        ("warning", slow["execution_id"], "timeout"),
    ]
    assert "secret" not in str(got)
