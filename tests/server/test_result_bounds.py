"""Whatever a guest displays, prints, raises, returns and writes, a result stays under a megabyte."""

import json
import random

import pytest
from mcp import Client
from mcp_types import CallToolResult

from . import bombs
from .support import Connect

pytestmark = pytest.mark.anyio
MAX_BYTES = 950_000
LARGE = {
    "one mime type of 8 MB": "display({'x' * 8_000_000: 'y', 'text/plain': 'z'}, raw=True)",
    "a hundred of 300 kB": "for i in range(100): display({f'a/{i}' + 'x' * 300_000: 'y'}, raw=True)",
    "thousands in one display": "display({f'text/x-{i}': 'y' for i in range(20_000)}, raw=True)",
    "the longest that are mime types": (
        "for i in range(1_000): display({f'{n:a<127}/{i:b<127}': 'y' for n in range(10, 42)}, raw=True)"
    ),
    "mime types that are none": "display({'': 'a', 'a': 'a', 'a/b/c': 'a', 'é/ü': 'a', '\\ud800/x': 'a'}, raw=True)",
    "metadata keys": "display({'text/plain': 'z'}, metadata={'x' * 8_000_000: 1}, raw=True)",
    "display ids": "for i in range(5): display({'text/plain': 'z'}, raw=True, display_id='x' * 3_000_000)",
    "updates": (
        "from IPython.display import update_display\ndisplay({'text/plain': 'z'}, raw=True, display_id='d')\n"
        "update_display({'text/' + 'x' * 3_000_000: 'z'}, raw=True, display_id='d')"
    ),
    "control characters": "print('\\x01' * 5_000_000); '\\x01' * 5_000_000",
    "wide characters": "import sys\nprint('\U0001f600' * 500_000); print('\U0001f600' * 500_000, file=sys.stderr)",
    "an exception's name and text": "raise type('E' * 3_000_000, (Exception,), {})('\\x01' * 3_000_000)",
    "names of files": (
        "for i in range(300): open(f'{i}' + '\\x01' * 200, 'w').close()\n"
        "import os\ndeep = '/'.join(['\\x02' * 200] * 10)\nos.makedirs(deep, exist_ok=True)\n"
        "open(deep + '/f', 'w').close()"
    ),
    "comms": "from ipykernel.comm import Comm\nComm(target_name='x' * 3_000_000, data={'y' * 3_000_000: 1})",
    "tables": "for i in range(200): display({'text/markdown': '\\x01' * 50_000, 'text/html': 'x'}, raw=True)",
}


def pictures_beside_text() -> str:
    """Not among the others from the start: the picture takes a while to make."""
    pictures = bombs.show(bombs.flat_png(4000), "image/png") * 3
    return pictures + "print('\\x01' * 100_000)\nraise ValueError('\\x01' * 100_000)"


async def run(client: Client, code: str, **more: object) -> CallToolResult:
    return await client.call_tool("execute_code", {"code": code, "session_id": "s", **more})


def size(answer: object) -> int:
    return len(answer.model_dump_json(by_alias=True).encode())  # type: ignore[attr-defined]


async def check(client: Client, result: CallToolResult, what: str) -> None:
    assert size(result) < MAX_BYTES, what
    execution = result.structured_content["execution_id"]
    again = await client.call_tool("get_execution", {"execution_id": execution})
    assert size(again) < MAX_BYTES, what


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["20000", "100000000"])
async def test_no_result_is_larger_than_a_megabyte(connect: Connect, budget: str) -> None:
    large = LARGE | {"pictures beside text": pictures_beside_text()}
    async with connect(POLICY__OUTPUT_BUDGET_CHARS=budget) as client:
        for what, code in large.items():
            await check(client, await run(client, code), what)
        everything = "\n".join(code for code in large.values() if "raise" not in code and "Comm" not in code)
        await check(client, await run(client, everything), "everything")
        assert size(await client.list_resources()) < MAX_BYTES


async def test_what_is_no_mime_type_is_left_out_and_said(connect: Connect) -> None:
    async with connect() as client:
        bundle = {
            "text/plain": "plain",
            "application/vnd.vegalite.v5+json": {"a": 1},
            "text/html; charset=utf-8": "html",
            "no type": "x",
        }
        result = await run(client, f"display({bundle!r}, raw=True)\ndisplay({{'none': 1}}, raw=True)")
        [output] = result.structured_content["outputs"]
        assert output["mime_types"] == list(bundle)[:3]
        assert result.structured_content["outputs_dropped"] == 1
        assert "2 forms of displayed objects were not kept" in result.content[0].text
        read = await client.read_resource(output["uri"])
        assert json.loads(read.contents[0].text) == {name: bundle[name] for name in list(bundle)[:3]}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_no_mixture_of_outputs_makes_a_larger_one(connect: Connect, seed: int) -> None:
    chance = random.Random(seed)
    pieces = [
        "'text/plain'",
        "'text/markdown'",
        "'a/' + 'b' * 120",
        "'image/png'",
        "'x' * 100_000",
        "'application/json'",
    ]
    values = ["'\\x01' * 200_000", "'\U0001f600' * 30_000", "[['é'] * 50] * 50", "{'k' * 50_000: None}", "1e15"]
    async with connect() as client:
        for _ in range(8):
            lines = []
            for _ in range(chance.randrange(1, 12)):
                bundle = ", ".join(f"{chance.choice(pieces)}: {chance.choice(values)}" for _ in range(3))
                lines.append(f"for _ in range({chance.choice([1, 20, 50])}): display({{{bundle}}}, raw=True)")
                lines.append(f"print({chance.choice(values)})")
            code = "\n".join([*lines, "def handler(event, context): return [1e15, '\\x01' * 20_000]", values[0]])
            await check(client, await run(client, code, event={}), code)


async def test_a_cell_that_displays_large_values_without_end_is_read_only_in_part_and_pictures_are_not_meant(
    connect: Connect,
) -> None:
    async with connect() as client:
        code = "data = list(range(700_000))\nfor _ in range(6): display({'application/json': data}, raw=True)"
        many = (await client.call_tool("execute_code", {"code": code})).structured_content
        assert many["outputs_dropped"] >= 4
        code = "for _ in range(12): display({'text/html': 'x' * 1_000_000}, raw=True)"
        whole = (await client.call_tool("execute_code", {"code": code})).structured_content
        assert whole["outputs_dropped"] == 0
