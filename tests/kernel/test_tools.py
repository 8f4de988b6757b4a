"""Calls of tools from a guest to a client that offers them: what comes back, and how each of them ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .driver import Kernel
from .offerer import SILENT, Offerer, Tool, failed, offering, structured, text

CALL = "from kernelmcp_guest.servers.calls import call, call_async\nimport asyncio\n"

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

TOOLS: dict[str, Tool] = {
    "crm.echo": structured,
    "crm.text": lambda arguments: text(arguments["text"]),
    "crm.raw": lambda arguments: json.dumps(structured(arguments), indent=1).encode(),
    "crm.fail": lambda arguments: failed(arguments["kind"], arguments["message"]),
    "crm.silent": lambda arguments: SILENT,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("offer")
    (found / "index.json").write_text("{}")
    return found


@pytest.fixture
def offerer(kernel: Kernel, folder: Path) -> Iterator[Offerer]:
    with offering(kernel, folder, dict(TOOLS)) as running:
        yield running


def test_a_call_gives_the_structured_content(kernel: Kernel, offerer: Offerer) -> None:
    ran = kernel.run(CALL + "call('crm', 'echo', {'a': [1, None, 'ü']})")
    assert ran.result == "{'a': [1, None, 'ü']}", ran.error


def test_text_is_text_and_json_when_asked(kernel: Kernel, offerer: Offerer) -> None:
    ran = kernel.run(CALL + "t = call('crm', 'text', {'text': '{\"a\": 1}'})\nt, t.json(), isinstance(t, str)")
    assert ran.result == "('{\"a\": 1}', {'a': 1}, True)", ran.error


def test_a_large_result_is_passed_on_without_being_parsed(kernel: Kernel, offerer: Offerer) -> None:
    ran = kernel.run(CALL + "call('crm', 'raw', {'a': 'ü\\n' * 10})")
    assert ran.result == repr({"a": "ü\n" * 10}), ran.error


def test_a_hundred_calls_at_once(kernel: Kernel, offerer: Offerer) -> None:
    code = "found = await asyncio.gather(*[call_async('crm', 'echo', {'a': n}) for n in range(500)])\n"
    ran = kernel.run(CALL + code + "found == [{'a': n} for n in range(500)]")
    assert ran.result == "True", ran.error
    assert len(offerer.calls) == 500


def test_plain_calls_inside_coroutines(kernel: Kernel, offerer: Offerer) -> None:
    code = """
async def one(n):
    return call('crm', 'echo', {'a': n})['a'], (await call_async('crm', 'echo', {'a': n}))['a']
"""
    ran = kernel.run(CALL + code + "await asyncio.gather(*[one(n) for n in range(5)])")
    assert ran.result == "[(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]", ran.error
