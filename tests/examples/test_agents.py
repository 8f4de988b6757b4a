"""Each agent of examples/ with a scripted model, as its reader would run it: what the model saw, and what came out.

The script also attacks the agent: code that raises, that never ends, that prints too much, and that asks for files of
the machine. After each, the session must still have its variables.
"""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .running import NODE, Desk, command, node_folder
from .scripted_model import Call, scripted

pytestmark = pytest.mark.slow

ENDLESS_SECONDS = 1
# smolagents has one limit for all cells, also for the first one of a session on a busy machine.
SMOLAGENTS_SECONDS = 2
MAX_RESULT_CHARS = 12_000  # output_budget_chars, and notes
PRINT_MUCH = "print('much ' * 1_000_000)"
# A red picture, from the standard library: the packages for plots are not needed to see that a picture arrives.
DRAW = """
import struct, zlib
from IPython.display import Image, display

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

header = struct.pack(">IIBBBBB", 3, 2, 8, 2, 0, 0, 0)
rows = zlib.compress((b"\\0" + b"\\xff\\0\\0" * 3) * 2)
display(Image(b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")))
print("x is", x + 1)
"""
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def cells(tool: str, timeout: str) -> list[Call]:
    return [
        Call(tool, {"code": "x = 40"}),
        Call(tool, {"code": "x += 1; print(' ')"}),
        Call(tool, {"code": "1 / 0"}),
        Call(tool, {"code": "while True: pass", timeout: ENDLESS_SECONDS}),
        Call(tool, {"code": PRINT_MUCH}),
        Call(tool, {"code": DRAW}),
    ]


def texts(result: dict[str, Any]) -> str:
    content = result["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


def check_no_text_is_blank(results: list[dict[str, Any]]) -> None:
    """APIs refuse it. The second cell printed a space."""
    assert [block for block in results[1]["content"] if not block["text"].strip()] == []


def check_cells(results: list[dict[str, Any]]) -> None:
    _, _, raised, endless, much, drawn, *_ = results
    assert "ZeroDivisionError" in texts(raised)
    assert "All variables are kept" in texts(endless)
    assert len(texts(much)) < MAX_RESULT_CHARS
    assert "characters left out" in texts(much)
    assert texts(drawn).startswith("x is 42")
    [picture] = [block["source"] for block in drawn["content"] if block["type"] == "image"]
    assert picture["media_type"] == "image/png"
    assert base64.b64decode(picture["data"]).startswith(PNG)


CALLS = [*cells("execute_code", "timeout"), Call("read_file", {"path": "../../etc/passwd"})]


def check_calls(results: list[dict[str, Any]]) -> None:
    check_cells(results)
    assert [result["is_error"] for result in results] == [False, False, True, True, False, False, True]
    assert "PERMISSION_DENIED" in texts(results[-1])


@pytest.mark.parametrize("example", ["mcp_python_agent.py", "agent.ts"])
def test_an_agent_with_an_official_sdk(desk: Desk, example: str) -> None:
    with scripted(*CALLS, "It is 42.") as model:
        printed = desk.run(*command(example), "Count.", environment=model.environment)
    assert model.is_done
    assert model.requests[0]["messages"][0]["content"] == "Count."
    assert model.requests[0]["system"].startswith("A Jupyter kernel of your own"), "the server's instructions"
    check_calls(model.results())
    check_no_text_is_blank(model.results())
    assert printed.endswith("It is 42.\n")
    assert (desk.folder / "picture-1.png").read_bytes().startswith(PNG)


def test_the_types_of_the_typescript_agent() -> None:
    folder = node_folder()
    compiler = folder / "node_modules" / "typescript" / "bin" / "tsc"
    options = "--noEmit --strict --erasableSyntaxOnly --skipLibCheck --types node --target esnext --module nodenext"
    run = [sys.executable, "-c", NODE, compiler, *options.split(), "agent.ts"]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_pydantic_ai_agent_returns_a_typed_answer(desk: Desk) -> None:
    answer = Call("final_result", {"summary": "Counted.", "figures": [{"name": "x", "value": 42}]})
    with scripted(*CALLS, answer) as model:
        printed = desk.run(*command("pydantic_ai_agent.py"), environment=model.environment)
    assert model.is_done
    check_calls(model.results())
    assert "A Jupyter kernel of your own" in model.requests[0]["system"][0]["text"], "the server's instructions"
    assert printed == "Counted.\n  x = 42\n(1 pictures)\n"


def test_a_deep_agent_works_in_its_backend(desk: Desk) -> None:
    calls = [
        *cells("run_python", "timeout_seconds"),
        Call("write_file", {"file_path": "/workspace/a/b.txt", "content": "one\ntwo\nthree\n"}),
        Call("edit_file", {"file_path": "/workspace/a/b.txt", "old_string": "two", "new_string": "2"}),
        Call("read_file", {"file_path": "/workspace/a/b.txt"}),
        Call("ls", {"path": "/workspace"}),
        Call("grep", {"pattern": "thr", "path": "/workspace", "output_mode": "content"}),
        Call("glob", {"pattern": "*.txt", "path": "/workspace"}),
        Call("execute", {"command": "cat a/b.txt; exit 3"}),
        Call("execute", {"command": "while true; do :; done", "timeout": ENDLESS_SECONDS}),
        Call("run_python", {"code": "print(open('a/b.txt').read(), x)"}),
        Call("read_file", {"file_path": "../../etc/passwd"}),
        Call("read_file", {"file_path": "/etc/passwd"}),
        Call("write_file", {"file_path": "/workspace/../etc/cron.d/x", "content": "x"}),
        Call("write_file", {"file_path": "/etc/cron.d/x", "content": "x"}),
    ]
    with scripted(*calls, "Done.") as model:
        printed = desk.run(*command("deepagents_backend.py"), environment=model.environment)
    assert model.is_done
    check_cells(model.results())
    check_no_text_is_blank(model.results())
    said = [texts(result) for result in model.results()][6:]
    assert "/workspace/a/b.txt" in said[0]  # the words are deepagents'
    assert "/workspace/a/b.txt" in said[1]
    assert "one\n2\nthree" in said[2]
    assert "/workspace/a" in said[3]
    assert "three" in said[4]
    assert "/workspace/a/b.txt" in said[5]
    assert said[6].startswith("one\n2\nthree\n")
    assert "exit code 3" in said[6]
    assert "exit code 124" in said[7]
    assert said[8] == "one\n2\nthree\n 41"
    assert [result["is_error"] for result in model.results()][15:] == [True] * 4
    assert not any("root:" in text for text in said)
    assert printed == "Done.\n  /workspace/a/b.txt, 12 bytes\n"


def test_a_smolagents_agent_answers_with_data(desk: Desk) -> None:
    forged = "from IPython.display import display\ndisplay({'application/json': 'forged'}, raw=True)\nraise FinalAnswer"
    codes = [
        "x = 41",
        "1 / 0",
        "while True: pass",
        PRINT_MUCH,
        DRAW,
        "raise FinalAnswer",
        forged,
        "import os; os._exit(3)",
        "x = 41",
        "final_answer({'x': x + 1, 'long': 'y' * 20_000, 'odd': {1, 2}.__class__})",
    ]
    with scripted(*[f"A thought.\n<code>\n{code}\n</code>" for code in codes]) as model:
        run = [*command("smolagents_executor.py"), "Count.", "--timeout", str(SMOLAGENTS_SECONDS)]
        printed = desk.run(*run, environment=model.environment)
    assert model.is_done
    seen = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "user"]
    _, _, raised, endless, much, drawn, empty, wrong, died, _ = seen
    assert "ZeroDivisionError" in str(raised)
    assert "All variables are kept" in str(endless)
    assert "characters left out" in str(much)
    assert len(str(much)) < MAX_RESULT_CHARS
    [picture] = [block["image_url"]["url"] for block in drawn if block["type"] == "image_url"]
    assert base64.b64decode(picture.removeprefix("data:image/png;base64,")).startswith(PNG)
    assert "x is 42" in str(drawn)
    assert "raise FinalAnswer" in str(empty), "the traceback"
    assert "Error" in str(wrong), "what the sandbox says is an answer need not be one"
    assert "All variables, imports and definitions of this session are gone" in str(died)
    answer = printed.splitlines()[-1]
    assert answer.startswith("{'x': 42, 'long': 'yyy")
    assert answer.endswith("'odd': \"<class 'set'>\"}")
    assert len(answer) > 20_000
