"""execute_code and its relatives, through a real client."""

import json
from contextlib import suppress

import anyio
import psutil
import pytest
from mcp import Client

from .support import Connect, kernel_pids

pytestmark = pytest.mark.anyio

# Less than a call waits for its cell: a kernel that is not killed fails the test instead of answering "running".
KILL_SECONDS = 40


async def run(client: Client, code: str, **arguments: object) -> dict:
    result = await client.call_tool("execute_code", {"code": code, **arguments})
    return result.structured_content


async def finish(client: Client, content: dict) -> dict:
    """Poll until it is over."""
    while content["status"] == "running":
        arguments = {"execution_id": content["execution_id"], "wait_seconds": 5}
        content = (await client.call_tool("get_execution", arguments)).structured_content
    return content


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28", "auto"])
async def test_variables_stay_between_calls_for_clients_of_both_eras(connect: Connect, mode: str) -> None:
    async with connect(mode) as client:
        first = await run(client, "x = 20")
        second = await run(client, "print('hi')\nx + 1")
        assert second["session_id"] == first["session_id"]
        assert (first["session_created"], second["session_created"]) == (True, False)
        assert (second["stdout"], second["result"], second["status"]) == ("hi\n", "21", "ok")
        assert (second["success"], second["exit_code"], second["execution_count"]) == (True, 0, 2)


async def test_a_result_has_exactly_the_fields_of_the_contract(connect: Connect) -> None:
    async with connect() as client:
        assert set(await run(client, "1")) == {
            "session_id", "session_created", "execution_id", "execution_count", "status", "success", "exit_code",
            "stdout", "stderr", "result", "error", "outputs", "outputs_dropped", "files_changed", "truncated",
            "state_lost", "restored", "background", "execution_time_ms", "queued_ms",
        }  # fmt: skip


async def test_output_is_streamed_as_progress_and_is_in_the_result_again(connect: Connect) -> None:
    seen: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))

    async with connect() as client:
        code = "import time\nfor i in range(4):\n    print('line', i)\n    time.sleep(0.15)"
        result = await client.call_tool("execute_code", {"code": code}, progress_callback=on_progress)
    assert result.structured_content["stdout"] == "line 0\nline 1\nline 2\nline 3\n"
    assert "".join(message or "" for _, message in seen) == result.structured_content["stdout"]
    assert len(seen) > 1
    assert [number for number, _ in seen] == sorted({number for number, _ in seen})


async def test_a_guest_exception_is_an_error_result_not_a_protocol_error(connect: Connect) -> None:
    async with connect() as client:
        result = await client.call_tool("execute_code", {"code": "print('before')\n1/0"})
        assert result.is_error
        content = result.structured_content
        assert (content["status"], content["exit_code"], content["stdout"]) == ("error", 1, "before\n")
        assert content["error"]["name"] == "ZeroDivisionError"
        assert "division by zero" in content["error"]["traceback"]
        assert "\x1b" not in content["error"]["traceback"]
        assert "before" in result.content[0].text
        assert "ZeroDivisionError" in result.content[0].text


async def test_a_timeout_interrupts_the_cell_and_keeps_the_variables(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "x = 5")
        result = await run(client, "while True: pass", timeout=0.5)
        assert (result["status"], result["exit_code"], result["state_lost"]) == ("timeout", 124, False)
        assert (await run(client, "x"))["result"] == "5"


async def test_a_cell_that_ignores_interrupts_is_killed_and_says_that_the_state_is_lost(connect: Connect) -> None:
    async with connect(KERNELS__INTERRUPT_GRACE_SECONDS="1") as client:
        await run(client, "x = 5; open('kept.txt', 'w').write('file')")
        result = await run(client, "sum(range(10**12))", timeout=1)
        assert (result["status"], result["exit_code"], result["state_lost"]) == ("timeout", 124, True)
        assert "variables" in result["error"]["value"]
        after = await run(client, "print(open('kept.txt').read())\n'x' in globals()")
        assert (after["stdout"], after["result"], after["status"]) == ("file\n", "False", "ok")


async def test_a_kernel_that_hangs_is_killed_by_the_server_and_says_that_the_state_is_lost(connect: Connect) -> None:
    """A process that is stopped neither takes interrupts nor watches its guest."""
    async with connect(KERNELS__INTERRUPT_GRACE_SECONDS="1") as client:
        await run(client, "x = 5; open('kept.txt', 'w').write('file')")
        [kernel] = kernel_pids()
        psutil.Process(kernel).suspend()
        try:
            with anyio.fail_after(KILL_SECONDS):
                result = await run(client, "x", timeout=0.5)
        finally:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(kernel).kill()
        assert (result["status"], result["exit_code"], result["state_lost"]) == ("timeout", 124, True)
        assert kernel not in kernel_pids()
        after = await run(client, "print(open('kept.txt').read())\n'x' in globals()")
        assert (after["stdout"], after["result"], after["status"]) == ("file\n", "False", "ok")


async def test_a_long_call_answers_running_and_is_polled(connect: Connect) -> None:
    async with connect(SESSIONS__INLINE_WAIT_SECONDS="0.3") as client:
        await finish(client, await run(client, "1"))
        result = await client.call_tool(
            "execute_code", {"code": "import time\nprint('a', flush=True)\ntime.sleep(1)\n'done'"}
        )
        content = result.structured_content
        assert (content["status"], content["success"], result.is_error) == ("running", False, False)
        assert content["execution_id"] in result.content[0].text
        content = await finish(client, content)
        assert (content["status"], content["stdout"], content["result"]) == ("ok", "a\n", "'done'")


async def test_cancel_execution_interrupts_and_keeps_the_variables(connect: Connect) -> None:
    async with connect(SESSIONS__INLINE_WAIT_SECONDS="0.2") as client:
        await finish(client, await run(client, "x = 7"))
        running = await run(client, "while True: pass")
        assert running["status"] == "running"
        cancelled = (await client.call_tool("cancel_execution", {})).structured_content
        assert cancelled == {
            "session_id": running["session_id"], "execution_id": running["execution_id"],
            "cancelled": True, "status": "interrupted",
        }  # fmt: skip
        result = await client.call_tool("get_execution", {"execution_id": running["execution_id"]})
        assert (result.structured_content["exit_code"], result.is_error) == (130, True)
        assert (await finish(client, await run(client, "x")))["result"] == "7"
        nothing = await client.call_tool("cancel_execution", {})
        assert (nothing.structured_content["cancelled"], nothing.structured_content["execution_id"]) == (False, None)
        assert nothing.content[0].text == "Nothing was running."


async def test_a_cancel_that_comes_late_says_what_had_happened(connect: Connect) -> None:
    async with connect(SESSIONS__INLINE_WAIT_SECONDS="0.2", KERNELS__INTERRUPT_GRACE_SECONDS="2") as client:
        ended = await finish(client, await run(client, "'ended'"))
        stubborn = "while True:\n    try:\n        while True: pass\n    except KeyboardInterrupt: pass"
        running = await run(client, f"open('begun', 'w').close()\n{stubborn}")
        while (await client.call_tool("read_file", {"path": "begun"})).is_error:
            pass
        late = await client.call_tool("cancel_execution", {"execution_id": ended["execution_id"]})
        assert late.content[0].text == "It had ended already, with status 'ok'."
        told = list[str]()

        async def cancel() -> None:
            found = await client.call_tool("cancel_execution", {"execution_id": running["execution_id"]})
            told.append(found.content[0].text)

        async with anyio.create_task_group() as both:
            both.start_soon(cancel)
            both.start_soon(cancel)
        assert sorted(told) == [
            "Cancelled, but variables are lost: get_execution says why.",
            "It was being interrupted already; get_execution has its end.",
        ]


async def test_a_waiting_execution_is_cancelled_without_touching_the_running_one(connect: Connect) -> None:
    async with connect(SESSIONS__INLINE_WAIT_SECONDS="0") as client:
        wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n'finished'"
        running = await run(client, wait)
        waiting = await run(client, "'never'")
        cancelled = await client.call_tool("cancel_execution", {"execution_id": waiting["execution_id"]})
        assert cancelled.structured_content["status"] == "interrupted"
        await client.call_tool("write_file", {"path": "go", "content": ""})
        assert (await finish(client, running))["result"] == "'finished'"


async def test_a_client_that_gives_up_interrupts_its_cell_and_no_other(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "x = 1")
        with anyio.move_on_after(0.5):
            await run(client, "while True: pass")
        assert (await run(client, "x + 1"))["result"] == "2"


async def test_parallel_calls_of_one_session_run_in_order(connect: Connect) -> None:
    results: dict[int, dict] = {}
    async with connect() as client:
        await run(client, "seen = []")

        async def call(number: int) -> None:
            results[number] = await run(client, f"seen.append({number}); print({number}); list(seen)")

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(call, number)
    assert [results[number]["stdout"] for number in range(8)] == [f"{number}\n" for number in range(8)]
    assert results[7]["result"] == str(list(range(8)))


async def test_sessions_neither_mix_nor_block_each_other(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "who = 'a'", session_id="a")
        await run(client, "who = 'b'", session_id="b")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, client, "while True: pass")
            result = await run(client, "who", session_id="b")
            assert (result["result"], result["session_id"]) == ("'b'", "b")
            tasks.cancel_scope.cancel()
        assert (await run(client, "who", session_id="a"))["result"] == "'a'"


async def test_queue_time_is_measured(connect: Connect) -> None:
    queued: list[float] = []
    async with connect() as client:
        await run(client, "import time")

        async def call() -> None:
            queued.append((await run(client, "time.sleep(3)"))["queued_ms"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            tasks.start_soon(call)
    assert min(queued) < 200 < max(queued)


async def test_a_large_output_is_cut_and_all_of_it_is_a_resource(connect: Connect) -> None:
    async with connect() as client:
        result = await client.call_tool("execute_code", {"code": "for i in range(20000): print('line', i)"})
        content = result.structured_content
        whole = "".join(f"line {i}\n" for i in range(20000))
        cut = content["truncated"]["stdout"]
        assert cut["total_chars"] == len(whole)
        assert content["stdout"].startswith("line 0\n")
        assert content["stdout"].endswith("line 19999\n")
        assert len(content["stdout"]) < 21_000
        read = await client.read_resource(cut["uri"])
        assert read.contents[0].text == whole
        assert cut["uri"] in [str(block.uri) for block in result.content if block.type == "resource_link"]


async def test_what_a_result_leaves_out_is_said_and_lies_in_a_resource(connect: Connect) -> None:
    async with connect(POLICY__OUTPUT_BUDGET_CHARS="2000", POLICY__FLAVORS__MEDIUM__MEMORY_MB="128") as client:
        code = "from IPython.display import display, Markdown\ndisplay(Markdown('- row\\n' * 1000))\n'x' * 5000"
        result = await client.call_tool("execute_code", {"code": code})
        text, content = result.content[0].text, result.structured_content
        display, value = content["outputs"][0]["uri"], content["truncated"]["result"]
        assert len(text) <= 2000
        assert f'of 6,000 characters left out: read_file("{display}")' in text
        assert 200 <= value["shown_chars"] <= 2000
        assert value["total_chars"] == 5002
        assert (await client.read_resource(value["uri"])).contents[0].text == repr("x" * 5000)
        bundle = json.loads((await client.read_resource(display)).contents[0].text)
        assert bundle["text/markdown"] == "- row\n" * 1000

        result = await client.call_tool("execute_code", {"code": "kept = 1; bytearray(10**9)"})
        assert (
            "delete large ones, process the data in parts, or create_session with a larger flavor"
            in result.content[0].text
        )
        result = await client.call_tool("execute_code", {"code": "bytearray(10**10)"})
        assert result.content[0].text.endswith(
            "[All variables are kept. No session can hold an object that large: process the data in parts.]"
        )
        assert (await run(client, "kept"))["result"] == "1"


async def test_twenty_megabytes_in_one_cell_arrive_whole(connect: Connect) -> None:
    async with connect() as client:
        result = await run(client, "line = 'y' * 999\nfor _ in range(20 * 1024): print(line)", timeout=50)
        assert result["truncated"]["stdout"]["total_chars"] == 1000 * 20 * 1024


async def test_ten_thousand_displays_neither_hang_nor_lose_the_session(connect: Connect) -> None:
    async with connect() as client:
        result = await run(client, "for i in range(10_000): display({'text/plain': str(i)}, raw=True)")
        assert (result["status"], len(result["outputs"]), result["outputs_dropped"]) == ("ok", 100, 9000)
        assert (await run(client, "1 + 1"))["result"] == "2"


PNG = """
import zlib, struct, random
def png(side):
    rows = b"".join(b"\\0" + random.randbytes(3 * side) for _ in range(side))
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")
    return b"\\x89PNG\\r\\n\\x1a\\n" + body
from IPython.display import Image
"""


async def test_a_picture_comes_back_as_an_image_block_and_a_resource(connect: Connect) -> None:
    async with connect() as client:
        result = await client.call_tool("execute_code", {"code": PNG + "Image(png(20))"})
        blocks = {block.type: block for block in result.content}
        assert blocks["image"].mime_type == "image/png"
        [output] = result.structured_content["outputs"]
        assert "image/png" in output["mime_types"]
        read = await client.read_resource(output["uri"])
        assert read.contents[0].blob == blocks["image"].data
        assert read.contents[0].mime_type == "image/png"


async def test_large_pictures_are_scaled_until_the_result_is_small(connect: Connect) -> None:
    async with connect() as client:
        for _ in range(5):  # on a busy machine they may not all be ready in time, and are named then
            result = await client.call_tool(
                "execute_code", {"code": PNG + "for _ in range(3): display(Image(png(800)))"}
            )
            assert len(result.model_dump_json()) < 900_000
            if [block.type for block in result.content].count("image") == 3:
                break
            assert "pictures: " in result.content[0].text
        else:
            pytest.fail("not all pictures were made smaller in time, in five results")


async def test_lone_surrogates_and_broken_reprs_are_cut_not_fatal(connect: Connect) -> None:
    async with connect() as client:
        result = await run(client, r"""display({'text/plain': '\ud800 lone'}, raw=True)""" + "\nprint('ok')")
        assert (result["status"], result["stdout"]) == ("ok", "ok\n")
        [output] = result["outputs"]
        assert json.loads((await client.read_resource(output["uri"])).contents[0].text) == {
            "text/plain": r"\ud800 lone"
        }
        broken = await run(client, "class B:\n    def __repr__(self): raise ValueError('no repr')\nB()")
        assert broken["status"] == "error"
        assert (broken["error"]["name"], broken["error"]["value"]) == ("ValueError", "no repr")
        assert (await run(client, "1 + 1"))["result"] == "2"


async def test_a_five_megabyte_cell_runs(connect: Connect) -> None:
    async with connect() as client:
        assert (await run(client, f"s = '{'x' * 5_000_000}'\nlen(s)"))["result"] == "5000000"


async def test_clear_output_clears_what_the_cell_showed(connect: Connect) -> None:
    async with connect() as client:
        code = "from IPython.display import clear_output\nprint('old', flush=True)\nclear_output()\nprint('new')"
        assert (await run(client, code))["stdout"] == "new\n"


async def test_input_fails_clearly(connect: Connect) -> None:
    async with connect() as client:
        assert (await run(client, "input('?')"))["error"]["name"] == "StdinNotImplementedError"
