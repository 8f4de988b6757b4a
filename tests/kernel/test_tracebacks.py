"""What is shown of an error: the lines of who wrote the cell, a library's last one at most, and none of ours."""

from __future__ import annotations

import re

import pytest

from .driver import Kernel, Ran

SETUP = """
import asyncio, json, os, sys, types
os.makedirs('/tmp/site-packages', exist_ok=True)
with open('/tmp/site-packages/deep.py', 'w') as file:
    file.write('''
def outer(call): return middle(call)
def middle(call): return call()
def fails():
    try: {}['inside']
    except KeyError: wrapped()
def wrapped():
    try: int('x')
    except ValueError: raise RuntimeError('from the library')
def chained():
    try: int('y')
    except ValueError as error: raise RuntimeError('from the library') from error
''')
with open('/workspace/mine.py', 'w') as file: file.write('def half(x):\\n    return 1 / x\\n')
sys.path[:0] = ['/tmp/site-packages']
import deep, mine
"""

# A cell, the places that are shown (file or cell, and line), and how its text ends.
SHOWN = {
    "own function": (
        "def f():\n    return 1 / 0\nf()",
        ["Cell 3", "Cell 2"],
        "ZeroDivisionError: division by zero",
    ),
    "own module": ("mine.half(0)", ["Cell 1", "mine.py 2"], "ZeroDivisionError: division by zero"),
    "library": ("deep.outer(deep.wrapped)", ["Cell 1", "deep.py 9"], "RuntimeError: from the library"),
    "library that chains": ("deep.outer(deep.fails)", ["Cell 1", "deep.py 9"], "RuntimeError: from the library"),
    "cause in a library": ("deep.chained()", ["deep.py 11", "Cell 1", "deep.py 12"], "RuntimeError: from the library"),
    "callback": ("def f():\n    1 / 0\ndeep.outer(f)", ["Cell 3", "Cell 2"], "ZeroDivisionError: division by zero"),
    "own cause": (
        "try: 1 / 0\nexcept Exception as error: raise ValueError('own') from error",
        ["Cell 1", "Cell 2"],
        "ValueError: own",
    ),
    "guest code of ours at the end": (
        "json.loads('{')",
        ["Cell 1", "decoder.py 361"],
        "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    ),
    "process": ("os.fork()", ["Cell 1"], "OSError: the sandbox cannot start processes: subprocess.run and !cmd run"),
    "no source": ("exec('1 / 0')", ["Cell 1", "<string> 1"], "ZeroDivisionError: division by zero"),
    "asyncio": (
        "async def f():\n    1 / 0\nasyncio.run(f())",
        ["Cell 3", "Cell 2"],
        "ZeroDivisionError: division by zero",
    ),
    "gather": (
        "async def f():\n    1 / 0\nawait asyncio.gather(f())",
        ["Cell 3", "Cell 2"],
        "ZeroDivisionError: division by zero",
    ),
    "syntax error in eval": ("eval('1+')", ["Cell 1", "<string> 1"], "SyntaxError: invalid syntax"),
    "install": ("%pip install", [], "InvalidRequirement: no package was named; give a name, such as"),
}  # fmt: skip


def shown(ran: Ran) -> str:
    (error,) = [output["content"] for output in ran.outputs if output["msg_type"] == "error"]
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error["traceback"]))


def places(text: str) -> list[str]:
    found = re.findall(r"^ *(?:File (?:\S*/)?(\S+?):|(Cell) In\[\d+\], line )(\d+)", text, re.MULTILINE)
    return [f"{file or cell} {line}" for file, cell, line in found]


@pytest.fixture(scope="module")
def guest(kernel: Kernel) -> Kernel:
    ran = kernel.prepare(SETUP)
    assert ran.status == "ok", ran.error
    return kernel


@pytest.mark.parametrize(("code", "where", "end"), SHOWN.values(), ids=SHOWN.keys())
def test_the_users_lines_are_shown_and_the_last_of_a_library(
    guest: Kernel, code: str, where: list[str], end: str
) -> None:
    text = shown(guest.run(code))
    assert places(text) == where
    assert any(line.startswith(end) for line in text.splitlines())
    assert not re.search("Could not get source|kernelmcp_guest|IPython/|<frozen", text)


def test_a_verbose_traceback_has_the_libraries_frames_but_none_of_ours(guest: Kernel) -> None:
    guest.run("%xmode Verbose")
    text = shown(guest.run("deep.outer(deep.wrapped); json"))
    assert places(text)[-4:] == ["Cell 1", "deep.py 2", "deep.py 3", "deep.py 9"]
    assert "kernelmcp_guest" not in shown(guest.run("json.loads('{')"))
    assert guest.run("%xmode Context").status == "ok"


def test_the_debugger_and_the_program_still_have_all_frames(guest: Kernel) -> None:
    guest.run("deep.outer(deep.wrapped)")
    code = "import traceback\n[frame.name for frame in traceback.extract_tb(sys.last_exc.__traceback__)][-3:]"
    assert guest.run(code).result == "['outer', 'middle', 'wrapped']"
    assert places(shown(guest.run("%tb"))) == ["Cell 1", "deep.py 9"]


def test_a_group_of_errors_shows_each_of_them_without_our_frames(guest: Kernel) -> None:
    code = "async def f():\n    1 / 0\nasync with asyncio.TaskGroup() as group:\n    group.create_task(f())"
    ran = guest.run(code)
    text = shown(ran)
    assert ran.kinds() == ["error"]
    assert "ZeroDivisionError: division by zero" in text
    assert "line 2, in f" in text
    assert not re.search("kernelmcp_guest|IPython/|taskgroups", text)
    assert len(text) < 800


@pytest.mark.parametrize(
    "code",
    [
        "e = ValueError('a'); e.__cause__ = e\nraise e",
        "a, b = ValueError('a'), KeyError('b'); a.__context__, b.__context__ = b, a\nraise a",
        "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
        "class E(Exception):\n    def __getattr__(self, name): raise ValueError(name)\nraise E('x')",
        "class E(Exception):\n    def __bool__(self): raise ValueError\ntry: raise E\nexcept E as e: raise e from e",
        "e = ValueError('a'); e.__notes__ = 5\nraise e",
        "def f(): f()\nf()",
    ],
)
def test_a_strange_error_is_still_an_error(guest: Kernel, code: str) -> None:
    ran = guest.run(code)
    assert (ran.status, ran.state_lost) == ("error", False)
    assert ran.kinds().count("error") == 1
    assert guest.run("1 + 1").result == "2"


MANY_WAYS = """import random
exec(''.join(f'def way{i}(): return random.choice(WAYS)()\\n' for i in range(300)))
WAYS = [value for name, value in list(globals().items()) if name.startswith('way')]
WAYS[0]()"""


@pytest.mark.parametrize(
    "code", ["def f(): return f()\nf()", "def f(): return g()\ndef g(): return f()\nf()", MANY_WAYS]
)
def test_of_a_recursion_without_end_only_what_is_shown_is_looked_at(guest: Kernel, code: str) -> None:
    """A thousand entries took 6 s."""
    counting = "inspect.getmodule = lambda *given: looked.append(given) or stock(*given)"
    guest.run(f"import inspect\nlooked, stock = [], inspect.getmodule\n{counting}")
    ran = guest.run(code)
    assert ran.error == "RecursionError: maximum recursion depth exceeded"
    assert "skipping similar frames" in shown(ran)
    assert len(shown(ran)) < 5000
    assert 0 < int(guest.run("inspect.getmodule = stock; len(looked)").result or 0) < 150
