"""What the system refuses is an errno for the program that asked, never the guest's end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import running_kernel
from .driver import Kernel


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders whose paths begin alike, and a file beside them."""
    home = tmp_path_factory.mktemp("volumes")
    folders = {name: home / name for name in ("x", "x2", "x22", "x2-ro", "other")}
    for name, folder in folders.items():
        (folder / "below").mkdir(parents=True)
        (folder / "below" / "name").write_text(name)
    (home / "x3").write_text("not a volume")
    return folders


@pytest.fixture(scope="module")
def kernel(volumes: dict[str, Path]) -> Iterator[Kernel]:
    told = [
        {"name": name, "path": str(folder), "mode": "ro" if name.endswith("ro") else "rw"}
        for name, folder in volumes.items()
    ]
    with running_kernel(KERNELMCP_VOLUMES=json.dumps(told)) as running:
        yield running


def lives(kernel: Kernel, code: str) -> str | None:
    """The result of a cell after which the variables are still there."""
    kernel.run("kept = 41")
    ran = kernel.run(code)
    assert not ran.state_lost, ran.error
    assert kernel.run("kept").result == "41"
    assert ran.status == "ok", ran.error
    return ran.result


def test_volumes_whose_paths_begin_alike_are_all_listed_and_read(kernel: Kernel, volumes: dict[str, Path]) -> None:
    for name in volumes:
        assert lives(kernel, f"import os; os.listdir('/volumes/{name}')") == "['below']"
        assert lives(kernel, f"open('/volumes/{name}/below/name').read()") == repr(name)
    lives(kernel, "open('/volumes/x2/new', 'w').write('x')")
    assert (volumes["x2"] / "new").exists()
    refused = kernel.run("open('/volumes/x2-ro/new', 'w')")
    assert (refused.status, refused.state_lost) == ("error", False)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_standard_descriptors_are_replaced_closed_and_put_back(kernel: Kernel, number: int) -> None:
    code = (
        "import os, sys, tempfile\n"
        f"n = {number}\nsaved = os.dup(n)\nwith tempfile.TemporaryFile() as file:\n"
        "    os.dup2(file.fileno(), n); os.write(n, b'caught'); os.fsync(n)\n"
        "    file.seek(0); caught = file.read()\n"
        "os.close(n); os.dup2(saved, n); os.close(saved)\n"
        "null = os.open('/dev/null', os.O_RDWR); saved = os.dup(n); os.dup2(null, n); os.dup2(saved, n)\n"
        "os.close(null); os.close(saved)\ncaught"
    )
    assert lives(kernel, code) == "b'caught'"
    assert kernel.run("os.write(1, b'seen'); 1").text() == "seen"
    assert lives(kernel, "sys.stdin.read(), os.read(0, 1)") == "('', b'')"


@pytest.mark.parametrize(
    "call",
    [
        "os.fsync(fd)",
        "os.fdatasync(fd)",
        "os.fchmod(fd, 0o600)",
        "os.utime(fd, (1, 1))",
        "os.chmod('own', 0o600)",
        "os.utime('own')",
        "os.ftruncate(fd, 3)",
        "os.statvfs('.')",
        "os.fstatvfs(fd)",
        "os.sync()",
        "mapped.flush()",
    ],
)
def test_calls_that_the_permission_model_has_switched_off_do_as_well_as_can_be(kernel: Kernel, call: str) -> None:
    setup = "import os, mmap; fd = os.open('own', os.O_RDWR | os.O_CREAT); os.write(fd, b'12345')"
    lives(kernel, setup + "; mapped = mmap.mmap(fd, 0)")
    lives(kernel, call)
    lives(kernel, "mapped.close(); os.close(fd)")


RUNTIME = "/lib/python3.14/site-packages/IPython/__init__.py"


@pytest.mark.parametrize(
    "call",
    [
        "open(RUNTIME, 'w')",
        "open(RUNTIME + '.new', 'w')",
        "os.remove(RUNTIME)",
        "os.truncate(RUNTIME, 0)",
        "os.chmod(RUNTIME, 0o777)",
        "os.utime(RUNTIME)",
        "os.rename(RUNTIME, RUNTIME + '.old')",
        "os.mkdir(RUNTIME + '.d')",
        "os.rmdir(os.path.dirname(RUNTIME))",
        "os.symlink('a', RUNTIME + '.l')",
        "os.symlink('/etc/passwd', '/workspace/link')",
        "os.readlink(RUNTIME)",
        "open('/volumes/x2-ro/below/name', 'r+')",
        "open('n' * 5000, 'w')",
        "os.pwrite(os.open('far', os.O_RDWR | os.O_CREAT), b'x', 2**60)",
    ],
)
def test_a_refused_call_is_an_oserror_and_keeps_the_variables(kernel: Kernel, call: str) -> None:
    code = f"import os\nRUNTIME = {RUNTIME!r}\ntry: {call}\nexcept OSError as error: found = bool(error.errno)\nfound"
    kernel.run("found = None")
    assert lives(kernel, code) == "True"


@pytest.mark.parametrize("root", ["/etc", "/", "/nowhere", "/root/../proc/self"])
def test_writing_through_a_mount_whose_root_was_changed_is_refused_and_ends_nothing(
    own_kernel: Kernel, root: str
) -> None:
    calls = ["open(W + 'new', 'w')", "os.mkdir(W + 'd')", "os.remove(W + 'passwd')", "os.rename(W + 'hosts', W + 'x')"]
    calls += ["os.truncate(W + 'hosts', 0)", "os.chmod(W + 'hosts', 0)", "os.utime(W + 'hosts')", "os.rmdir(W + 'ssl')"]
    calls += ["open(W + 'hosts')", "os.statvfs(W)", "os.listdir(W)", "os.stat(W + 'hosts')", "os.readlink(W + 'x')"]
    code = (
        "import os, pyodide_js\nos.chdir('/')\nW, found = '/workspace/', []\n"
        "opts = pyodide_js.FS.lookupPath(W).node.mount.opts\nkeep = opts.root\n"
        f"opts.root = {root!r}\nfor call in {calls!r}:\n"
        "    try: eval(call)\n    except OSError as error: found.append(bool(error.errno))\n"
        "opts.root = keep; os.chdir(W); len(found) > 5 and all(found)"
    )
    assert lives(own_kernel, code) == "True"


DEEP = {
    "a linked list that is let go": (
        "class Node: pass\nhead = None\nfor _ in range(15_000):\n    node = Node(); node.next = head; head = node\n"
        "del head, node"
    ),
    "nested lists": "deep = []\nfor _ in range(15_000): deep = [deep]\ndel deep",
    "JSON": "import json; json.dumps(json.loads('[' * 9000 + ']' * 9000)) and None",
}


@pytest.mark.parametrize("code", DEEP.values(), ids=DEEP.keys())
def test_deeply_nested_data_is_no_end_of_the_guest(kernel: Kernel, code: str) -> None:
    lives(kernel, code)


@pytest.mark.parametrize(
    "code",
    [
        "json.loads('[' * 200_000)",
        "json.loads('[' * 200_000 + ']' * 200_000)",
        "json.loads('{\"a\":' * 200_000)",
        "json.loads(b'[' * 200_000)",
        "json.JSONDecoder().raw_decode('[' * 200_000)",
        "json.JSONDecoder().scan_once('[' * 200_000, 0)",
        "json.JSONDecoder(strict=False).decode('[' * 200_000)",
    ],
)
def test_json_that_is_nested_too_deeply_is_a_recursion_error(kernel: Kernel, code: str) -> None:
    kernel.run("kept = 41")
    ran = kernel.run(f"import json; {code}")
    assert ran.error.startswith("RecursionError: maximum recursion depth exceeded"), ran.error
    assert kernel.run("kept").result == "41"


@pytest.mark.parametrize(
    "text",
    ["[" + "[1, 2, {}], " * 30_000 + "[]]", '["' + "[{" * 30_000 + '"]', '"' + "\\\\[" * 30_000 + '"'],
    ids=["many", "in a string", "in a string with escapes"],
)
def test_json_with_many_brackets_is_read(kernel: Kernel, text: str) -> None:
    assert lives(kernel, f"import json; text = {text!r}; json.dumps(json.loads(text)) == text") == "True"


def test_more_blocked_calls_than_there_are_stacks_for_are_an_error_of_the_cell(kernel: Kernel) -> None:
    code = (
        "import asyncio\nfrom pyodide.ffi import run_sync\nasync def wait():\n    run_sync(asyncio.sleep(0.5))\n"
        "done = await asyncio.gather(*[wait() for _ in range(1000)], return_exceptions=True)\n"
        "sorted({type(each).__name__ for each in done})"
    )
    assert lives(kernel, code) == "['NoneType', 'RuntimeError']"
