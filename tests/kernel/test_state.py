"""A session's state: saved by one guest, loaded by another, refused where either is impossible."""

from __future__ import annotations

import struct
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernelmcp_kernel.runtime.build_identity import node_binary
from kernelmcp_kernel.runtime.places import HOST

from .state_guest import LEAD_BYTES, StateGuest, header_of, starting, with_header

Start = Callable[[], StateGuest]

SETUP = [
    """
import asyncio, collections, contextvars, ctypes, dataclasses, datetime, decimal, enum, functools, gc, io, itertools
import js, json, logging, mmap, os, random, re, signal, sqlite3, sys, tempfile, threading, time, weakref
import zipfile
class A:
    def __init__(self, v): self.v = v
@dataclasses.dataclass
class D:
    x: int
    y: list = dataclasses.field(default_factory=list)
class Color(enum.Enum): RED = 1
a = A(5); d = D(1, [a]); d.y.append(d.y)
def make():
    n = 0
    def count():
        nonlocal n
        n += 1
        return n
    return count
count = make(); count(); count()
def numbers(): yield from range(10)
g = numbers(); next(g); next(g)
async def later():
    for i in range(5): yield i
agen = later(); await agen.__anext__()
async def five(): return 5
coroutine = five()
double = lambda x: x * 2
decimal.getcontext().prec = 9
random.seed(7); first = random.random(); expected = random.Random(7); expected.random(); expected = expected.random()
pattern = re.compile('a(b+)'); it = iter([1, 2, 3]); next(it)
lock = threading.Lock(); lock.acquire(); rlock = threading.RLock(); rlock.acquire()
local = threading.local(); local.x = 4
cached = functools.lru_cache(lambda x: x + 1); cached(1)
var = contextvars.ContextVar('var'); var.set(11)
weak = weakref.ref(a); weak_dict = weakref.WeakValueDictionary(a=a); died = []
finalizer = weakref.finalize(a, died.append, 1)
frame = (lambda: sys._getframe())()
buffer = ctypes.create_string_buffer(b'hello'); view = memoryview(bytearray(b'abc'))
text = io.StringIO('hello'); text.read(2)
logging.basicConfig(level=10)
_ = signal.signal(signal.SIGTERM, lambda *a: died.append('term'))
monotonic = time.monotonic(); perf = time.perf_counter()
""",
    """
inside = sqlite3.connect(':memory:'); inside.execute('create table t(a)'); inside.execute('insert into t values(42)')
base = sqlite3.connect('/workspace/base.sqlite'); base.execute('create table t(a)')
base.execute('insert into t values(43)'); base.commit(); cursor = base.execute('select * from t')
begun = sqlite3.connect('/workspace/begun.sqlite'); begun.execute('create table t(a)'); begun.commit()
begun.execute('insert into t values(1)')
wal = sqlite3.connect('/workspace/wal.sqlite'); wal.execute('pragma journal_mode=wal').fetchall()
wal.execute('create table t(a)'); wal.commit()
""",
    """
open('/workspace/a.txt', 'w').write('nodefs'); open('/home/pyodide/m.txt', 'w').write('memfs')
open('/tmp/t.txt', 'w').write('tmpfs'); os.symlink('m.txt', '/home/pyodide/link'); os.makedirs('/home/pyodide/folder')
os.mkdir('/home/pyodide/own', 0o700)
os.mkdir('/home/pyodide/fixed'); open('/home/pyodide/fixed/x', 'w').write('fixed')
os.chmod('/home/pyodide/fixed', 0o555)
f_node = open('/workspace/a.txt'); f_node.read(2); copy = os.dup(f_node.fileno())
f_memory = open('/home/pyodide/m.txt'); f_memory.read(2)
f_written = open('/workspace/w.txt', 'w'); f_written.write('unflushed')
f_appended = open('/workspace/ap.txt', 'a'); f_appended.write('1'); f_appended.flush()
temporary = tempfile.TemporaryDirectory(); named = tempfile.NamedTemporaryFile(); named.write(b'abc')
mapped_file = open('/workspace/m', 'w+b'); mapped_file.write(b'x' * 8192); mapped_file.flush()
mapped = mmap.mmap(mapped_file.fileno(), 8192); mapped[0] = 65; mapped.flush()
archive = zipfile.ZipFile('/workspace/z.zip', 'w'); archive.writestr('a', 'b')
os.environ['FOO'] = 'bar'; sys.path.append('/workspace'); os.makedirs('/workspace/sub'); os.chdir('/workspace/sub')
""",
    """
from js import Math
stringify = js.JSON.stringify; made = js.Object.new(); made.x = 1
try: js.JSON.parse('{')
except Exception as error: js_error = error
import comm; channel = comm.create_comm(target_name='x')
big = {i: str(i) for i in range(50_000)}
""",
    "raise KeyError('kept')",
    "xs = [3, 4]; xs",
]

SURVIVES = {
    "objects": ("a.v, d.x, d.y[0] is a, d.y[1] is d.y, count(), Color.RED.name", "(5, 1, True, True, 3, 'RED')"),
    "generator": ("next(g), next(it)", "(2, 2)"),
    "async generator": ("await agen.__anext__()", "1"),
    "coroutine": ("await coroutine", "5"),
    "lambda": ("double(3)", "6"),
    "decimal context": ("decimal.Decimal('1.10') / 3", "Decimal('0.366666667')"),
    "pattern": ("pattern.match('abb').group(1)", "'bb'"),
    "locks": ("lock.locked(), rlock.release()", "(True, None)"),
    "thread-local": ("local.x", "4"),
    "cache": ("cached(1), cached.cache_info().hits", "(2, 1)"),
    "context variable": ("var.get()", "11"),
    "weak references": ("weak() is a, weak_dict['a'] is a, finalizer.alive", "(True, True, True)"),
    "frame": ("frame.f_code.co_name", "'<lambda>'"),
    "buffers": ("buffer.value, bytes(view), text.read(), len(big)", "(b'hello', b'abc', 'llo', 50000)"),
    "logging": ("logging.getLogger().level", "10"),
    "random continues": ("random.random() == expected", "True"),
    "clock": ("time.monotonic() >= monotonic, time.perf_counter() >= perf", "(True, True)"),
    "sqlite in memory": ("inside.execute('select * from t').fetchall()", "[(42,)]"),
    "sqlite cursor": ("cursor.fetchall()", "[(43,)]"),
    "sqlite writes": (
        "base.execute('insert into t values(44)'); base.commit(); base.execute('select count(*) from t').fetchall()",
        "[(2,)]",
    ),
    "sqlite transaction": ("begun.commit(); begun.execute('select * from t').fetchall()", "[(1,)]"),
    "sqlite wal": (
        "wal.execute('insert into t values(1)'); wal.commit(); wal.execute('select * from t').fetchall()",
        "[(1,)]",
    ),
    "file": ("f_node.read(), os.lseek(copy, 0, os.SEEK_CUR)", "('defs', 6)"),
    "file in memory": ("f_memory.read()", "'mfs'"),
    "unflushed text": ("f_written.write('x'); f_written.flush(); open('/workspace/w.txt').read()", "'unflushedx'"),
    "append": ("f_appended.write('2'); f_appended.flush(); open('/workspace/ap.txt').read()", "'12'"),
    "temporary files": ("named.seek(0), named.read(), os.path.exists(temporary.name)", "(0, b'abc', True)"),
    "links and folders": (
        """(os.readlink('/home/pyodide/link'), os.path.isdir('/home/pyodide/folder'), open('/tmp/t.txt').read(),
 os.stat('/home/pyodide/own').st_mode & 0o777)""",
        "('m.txt', True, 'tmpfs', 448)",
    ),
    "read-only folder": (
        "open('/home/pyodide/fixed/x').read(), os.access('/home/pyodide/fixed', os.W_OK)",
        "('fixed', False)",
    ),
    "mmap": ("mapped[1] = 66; mapped.flush(); mapped[0:3]", "b'ABx'"),
    "zip": ("archive.writestr('c', 'd'); archive.close(); archive.namelist()", "['a', 'c']"),
    "working directory": ("os.getcwd(), os.environ['FOO'], sys.path[-1]", "('/workspace/sub', 'bar', '/workspace')"),
    "history": ("any(each is xs for each in Out.values()), 'xs = [3, 4]; xs' in In", "(True, True)"),
    "last exception": ("sys.last_value.args", "('kept',)"),
    "signal handler": ("signal.raise_signal(signal.SIGTERM); died", "['term']"),
    "finalizer": ("died.clear(); del a, d; gc.collect(); weak(), died", "(None, [1])"),
    "imports": ("import email.message, statistics; statistics.mean([1, 2])", "1.5"),
    "asyncio": ("await asyncio.sleep(0.01); time.sleep(0.01); 'slept'", "'slept'"),
    "javascript globals": ("Math.max(1, 2), stringify(js.Object.new())", "(2, '{}')"),
    "javascript error": ("type(js_error).__name__", "'JsException'"),
    "comm": ("channel.send({'a': 1}); len(channel.comm_id)", "32"),
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    with starting(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="module")
def continued(start: Start) -> StateGuest:
    """A guest that continues the session of another: saved, loaded, saved, loaded."""
    guest = start()
    for cell in SETUP:
        answer = guest.run(cell)
        assert "Error" not in answer or "kept" in answer, answer
    for _ in range(2):
        answer, state = guest.save()
        assert answer["ok"], answer
        assert (answer["bytes"], answer["gone"]) == (len(state), ["Object"])
        guest.close()
        following = start()
        following.follow(guest)
        assert following.load(state) == {"ok": True, "lost": [], "gone": ["Object"]}
        guest = following
    return guest


@pytest.mark.parametrize("what", SURVIVES)
def test_a_session_continues_in_another_guest(continued: StateGuest, what: str) -> None:
    code, result = SURVIVES[what]
    assert continued.run(code) == result


def test_an_object_of_javascript_is_dead_and_says_so(continued: StateGuest) -> None:
    assert "this JavaScript object (Object) belonged to a process that has ended" in continued.run("made.x")
    assert continued.run("del made; 1") == "1"


def test_an_interrupt_ends_a_cell_of_a_continued_session(continued: StateGuest) -> None:
    continued.begin("while True: pass")
    time.sleep(0.2)
    continued.interrupt()
    assert continued.finish().startswith("KeyboardInterrupt")
    assert continued.run("1 + 1") == "2"


def test_what_did_not_come_back_is_named_as_what_it_was(start: Start) -> None:
    guest, other = start(), start()
    guest.run("import os; os.mkdir('sub'); f = open('f', 'w'); os.chdir('sub')")
    assert other.load(guest.save()[1])["lost"] == [
        "the open file /workspace/f (descriptor 3): the file system answered ENOENT",
        "the working directory /workspace/sub: the file system answered ENOENT",
    ]


# -- refused by name, and the session goes on

REFUSED = {
    "task": (
        "import asyncio\nasync def w(): await asyncio.sleep(30)\nx = asyncio.ensure_future(w())",
        "a task is under way: w",
        "x.cancel(); await asyncio.sleep(0.01)",
    ),
    "future": (
        "f = asyncio.get_event_loop().create_future()\nasync def v(): await f\nx = asyncio.ensure_future(v())",
        "a task is under way: v",
        "f.set_result(1); await x; None",
    ),
    "timer": (
        "x = asyncio.get_event_loop().call_later(30, print)",
        "a timer is due later",
        "x.cancel()",
    ),
    "deleted file": (
        "import os\nx = open('/workspace/x', 'w'); os.unlink('/workspace/x')",
        "/workspace/x is open, and was deleted or replaced",
        "x.close()",
    ),
    "pipe": ("r, w = os.pipe()", "is a pipe, a socket or a device", "os.close(r); os.close(w)"),
    "callback": (
        "import ctypes\nx = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: x + 1)",
        "a ctypes callback exists",
        "None",
    ),
}


@pytest.fixture(scope="module")
def refusing(start: Start) -> StateGuest:
    return start()


@pytest.mark.parametrize("what", REFUSED)
def test_a_session_that_cannot_be_saved_says_why_and_goes_on(refusing: StateGuest, what: str) -> None:
    """In this order: after the last one, the guest can't be saved any more."""
    code, reason, undo = REFUSED[what]
    refusing.run(code)
    answer, state = refusing.save()
    assert (answer["ok"], state) == (False, b""), answer
    assert len(answer["reasons"]) == 1
    assert reason in answer["reasons"][0]
    assert "Error" not in refusing.run(undo)
    if what != "callback":
        assert refusing.save()[0]["ok"]


def test_an_open_file_that_others_have_replaced_is_not_saved_as_the_other_one(start: Start) -> None:
    guest = start()
    guest.run("log = open('/workspace/log', 'w'); log.write('mine'); log.flush()")
    file = guest.workspace / "log"
    (guest.workspace / "other").write_text("other")
    (guest.workspace / "other").replace(file)
    assert guest.save()[0]["reasons"] == ["/workspace/log is open, and was deleted or replaced"]
    file.unlink()
    assert guest.save()[0]["reasons"] == ["/workspace/log is open, and was deleted or replaced"]
    assert guest.run("log.write(' again'); log.close()") == ""
    assert guest.save()[0]["ok"]
    guest.close()


def test_a_save_that_is_refused_looks_for_garbage_once(start: Start) -> None:
    """With millions of objects, that takes a second, and whoever saves does not wait long."""
    guest = start()
    guest.run("import asyncio, gc; seen = []; count = lambda phase, info: seen.append((phase, info['generation']))")
    guest.run("gc.callbacks.append(count); x = asyncio.get_event_loop().call_later(30, print)")
    assert guest.save()[0]["reasons"] == ["a timer is due later"]
    guest.run("gc.callbacks.remove(count); x.cancel()")
    assert guest.run("seen.count(('stop', 2))") == "1"
    assert guest.save()[0]["ok"]
    guest.close()


def test_a_state_is_not_saved_while_a_cell_runs(refusing: StateGuest) -> None:
    wait = "import asyncio, os\nwhile not os.path.exists('/workspace/go'): await asyncio.sleep(0.02)\n'done'"
    refusing.begin(wait)
    answer, state = refusing.save()
    (refusing.workspace / "go").touch()
    assert (answer, state) == ({"ok": False, "reasons": ["a cell is running"]}, b"")
    assert refusing.finish() == "'done'"


# -- damaged states


@pytest.fixture(scope="module")
def saved(start: Start) -> bytes:
    guest = start()
    guest.run("kept = list(range(1000)); z = bytearray(120_000_000); z[5] = 9")
    answer, state = guest.save()
    assert answer["ok"], answer
    guest.close()
    return state


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


def with_block(data: bytes, block: bytes) -> bytes:
    """The state with only one block, whose checksum is right."""
    header = with_header(data, lambda h: h["files"].update(files=[]))
    (length,) = struct.unpack_from("<I", header, 8)
    end = struct.pack("<II", 0, zlib.crc32(block))
    return header[: LEAD_BYTES + length] + struct.pack("<II", len(block), len(block)) + block + end


def nowhere(header: dict[str, Any]) -> None:
    library = {
        "path": "/workspace/x.so",
        "memory": 0,
        "table": 1,
        "size": 1,
        "handles": [],
        "global": False,
        "needs": [],
    }
    header["libraries"] = {"list": [library], "length": 1, "slots": [], "symbols": {}}


DAMAGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "cut short"),
    "cut in its header": (lambda data: data[:1000], "cut short"),
    "cut in a block": (lambda data: data[: len(data) // 2], "cut short"),
    "cut before its end": (lambda data: data[:-8], "cut short"),
    "a bit of a block": (lambda data: flipped(data, len(data) - 5000), "damaged|checksum"),
    "a bit of the header": (lambda data: flipped(data, 200), "its header is damaged"),
    "a bit of the checksum": (lambda data: flipped(data, len(data) - 1), "checksum"),
    "no state": (lambda data: b"PK" + data[2:], "not a saved session"),
    "no header": (lambda data: data[:8] + bytes(8) + data[16:], "header is damaged"),
    "a header of 4 GB": (lambda data: data[:8] + struct.pack("<I", 0xFFFFFFFF) + data[12:], "header is damaged"),
    "other build": (lambda data: with_header(data, lambda h: h.update(build_id="0" * 64)), "another boot image"),
    "other image": (lambda data: with_header(data, lambda h: h.update(image_crc32=1)), "another boot image"),
    "run out of range": (lambda data: with_header(data, lambda h: h["runs"].append([10**6, 5])), "out of range"),
    "negative run": (lambda data: with_header(data, lambda h: h["runs"].insert(0, [-5, 5])), "header is damaged"),
    "runs that overlap": (
        lambda data: with_header(data, lambda h: h["runs"].append(h["runs"][0])),
        "header is damaged",
    ),
    "run of text": (lambda data: with_header(data, lambda h: h["runs"].append(["1", 1])), "header is damaged"),
    "other address": (
        lambda data: with_header(data, lambda h: h["pins"].update(dict.fromkeys(h["pins"], 4))),
        "elsewhere",
    ),
    "heap of 4 GB": (lambda data: with_header(data, lambda h: h.update(heap_bytes=4 << 30)), "needs 4096 MB"),
    "file of 4 GB": (
        lambda data: with_header(
            data, lambda h: h["files"]["files"].append({"path": "/x", "kind": "file", "size": 4 << 30})
        ),
        "its files are damaged",
    ),
    "all content shifted": (
        lambda data: with_header(data, lambda h: h["files"]["files"].append({"path": "/x", "kind": "file", "size": 7})),
        "damaged|checksum",
    ),
    "a page longer than its block": (lambda data: with_block(data, b"\xff" * 32), "a block of it is damaged"),
    "half a map of a page": (lambda data: with_block(data, b"\xff" * 16), "a block of it is damaged"),
    "table": (lambda data: with_header(data, lambda h: h.update(table=1 << 30)), "header is damaged"),
    "library nowhere": (lambda data: with_header(data, nowhere), "shared objects cannot be loaded"),
    "references": (lambda data: with_header(data, lambda h: h.update(references=[{"path": 7}])), "objects are damaged"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_state_ends_the_guest_and_says_why(start: Start, saved: bytes, what: str) -> None:
    damage, reason = DAMAGED[what]
    guest = start()
    answer = guest.load(damage(saved), end=True)
    assert answer["ok"] is False
    (said,) = answer["reasons"]
    assert any(each in said for each in reason.split("|")), said
    assert guest.exit_status() == "70"


@pytest.mark.slow
def test_references_replaced_by_others_harm_only_that_session(start: Start, saved: bytes) -> None:
    guest = start()
    garbage = [{"path": ["constructor", "constructor"]}] * 30
    answer = guest.load(with_header(saved, lambda h: h.update(references=garbage)), end=True)
    assert answer["ok"] or guest.exit_status() == "70"


def test_a_heap_of_150_mb_is_loaded_whole(start: Start, saved: bytes) -> None:
    guest = start()
    assert guest.load(saved)["ok"]
    assert guest.run("kept[3], len(z), z[5]") == "(3, 120000000, 9)"


def test_a_guest_that_has_run_a_cell_takes_no_state(start: Start, saved: bytes) -> None:
    guest = start()
    guest.run("1")
    assert guest.load(saved) == {"ok": False, "reasons": ["this guest has run a cell already"]}
    assert guest.exit_status() == "70"


# -- what loading relies on


def test_two_guests_of_one_image_are_equal_where_a_state_needs_it(start: Start) -> None:
    """A new version of Pyodide may break it: then no state could be loaded."""
    first, second = (header_of(start().save()[1]) for _ in range(2))
    for same in ("heap_bytes", "stack", "pins", "interned", "references", "table", "libraries"):
        assert first[same] == second[same], same
    assert {key: value for key, value in first["files"].items() if key != "files"} == {
        key: value for key, value in second["files"].items() if key != "files"
    }
    pages = [
        {page for start, count in each["runs"] for page in range(start, start + count)} for each in (first, second)
    ]
    assert len(pages[0] ^ pages[1]) < 50


def test_a_small_session_is_only_what_differs_in_its_pages(start: Start) -> None:
    """900 pages differ, mostly in reference counts."""
    guest = start()
    guest.run("x, words = 1, ['a', 'b']")
    assert guest.save()[0]["pages"] > 500
    assert len(guest.save(is_plain=True)[1]) < 500_000


def test_collections_of_garbage_do_not_touch_the_pages_of_the_image(start: Start) -> None:
    """gc.freeze() when the image is built; without it 4,600 pages differ."""
    guest = start()
    assert guest.run("import gc\nfor _ in range(10): gc.collect()\n1") == "1"
    assert guest.save()[0]["pages"] < 2000


def test_what_calls_have_left_on_the_stack_is_not_saved(start: Start) -> None:
    """C code leaves as much there as it has used: megabytes, once something was nested deeply."""
    guest, other = start(), start()
    guest.run("from pyodide_js import _module\nmain = _module.LDSO.loadedLibsByName.__main__.exports; x = [1]")
    answer, base = guest.save(is_base=True)
    guest.run("begin, end = main.emscripten_stack_get_end(), main.emscripten_stack_get_current()")
    guest.run("_module.HEAPU8.fill(255, begin, end - 100_000); x.append(2); end - begin")
    assert int(guest.output[-1]) > 5_000_000
    whole, state = guest.save()
    assert whole["pages"] < answer["pages"] + 1000  # 2,500 are there
    changed, changes = guest.save(since=answer["id"])
    assert changed["pages"] < 1000
    assert other.load(changes + base)["ok"]
    assert other.run("x") == "[1, 2]"
    third = start()
    assert third.load(state)["ok"]
    assert third.run("x") == "[1, 2]"


def test_a_waiting_guest_prepares_and_loads_the_same(start: Start) -> None:
    first, second = start(), start()
    first.run("x = [1]")
    state = first.save()[1]
    time.sleep(2.5)  # it prepares after a second of idleness; nothing tells when it has
    assert second.load(state)["ok"]
    assert second.run("x.append(2); x") == "[1, 2]"


GROWS = f"""
import {{ Differences }} from "{HOST}/state/differences.mjs";
const memory = new WebAssembly.Memory({{ initial: 512, maximum: 1024 }});
const module = {{ HEAPU8: new Uint8Array(memory.buffer) }};
const differences = new Differences(module, {{ fd: -1, position: 0, header: {{ runs: [] }} }}, {{ first: 0, end: 0 }});
const preparing = differences.prepare(() => false);
setImmediate(() => {{
  memory.grow(1);
  module.HEAPU8 = new Uint8Array(memory.buffer);
}});
await preparing;
console.log(differences.prepared === undefined);
"""


def test_a_heap_that_grows_while_a_guest_prepares_ends_that() -> None:
    """A state that is loaded makes it grow: then the guest would read a buffer that is gone, and end."""
    command = [str(node_binary()), "--input-type=module", "-e", GROWS]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120, text=True)
    assert (done.stdout, done.stderr) == ("true\n", "")


# -- a fork: its state is moved at once, and both sessions go on


def test_a_fork_has_the_variables_and_random_numbers_of_its_own(start: Start) -> None:
    origin = start()
    origin.run("import random; random.seed(7); kept = [1]")
    packed, plain = origin.save(), origin.save(is_plain=True)
    assert len(plain[1]) > 1.5 * len(packed[1])
    forks = [start(), start()]
    assert [fork.load(plain[1], reseed=True)["ok"] for fork in forks] == [True, True]
    assert [each.run("kept.append(2); kept") for each in (origin, *forks)] == ["[1, 2]"] * 3
    assert len({each.run("random.random()") for each in (origin, *forks)}) == 3


# -- a state that is only what has changed since another one


def test_changes_and_their_base_are_the_whole_state(start: Start) -> None:
    origin = start()
    assert origin.run("import os, random\nkept = {'base': list(range(100_000))}; os.chdir('/tmp'); 1") == "1"
    answer, base = origin.save(is_base=True)
    sizes: list[int] = []
    for number in range(4):
        origin.run(f"kept[{number}] = [str(each) for each in range({number}, 100)]; kept['text'] = 'x' * {number}")
        if number == 2:  # the heap grows, and shrinks in part
            origin.run("kept['large'] = bytearray(80_000_000); kept['large'][5] = 9; kept['base'] = kept['base'][:5]")
        changed, changes = origin.save(since=answer["id"])
        assert (changed["ok"], changed["id"]) == (True, None), changed
        sizes.append(len(changes))
        other = start()
        assert other.load(changes + base)["ok"]
        look = (
            "len(kept['base']), sum(kept['base']), kept['text'], kept.get('large', b'')[5:6], list(kept), os.getcwd()"
        )
        assert other.run(look) == origin.run(look)
        assert other.save(is_base=True)[0]["ok"], "a loaded one can be a base, too"
        other.close()
    assert max(sizes) < len(base), sizes


def test_changes_that_a_weaker_hash_does_not_see(start: Start) -> None:
    """In each page two bits, 64 bytes apart: a multiplication and a rotation for each word made them cancel out."""
    origin, other = start(), start()
    assert origin.run("import array; floats = array.array('d', [1.0]) * 200_000; floats[0]") == "1.0"
    answer, base = origin.save(is_base=True)
    origin.run("for place in range(0, 200_000 - 8, 512): floats[place], floats[place + 8] = -1.0, 1 + 1 / 256")
    changed, changes = origin.save(since=answer["id"])
    assert changed["ok"]
    assert other.load(changes + base)["ok"]
    assert other.run("floats.count(-1.0), floats.count(1 + 1 / 256)") == "(391, 391)"


@pytest.mark.parametrize("what", ["no base", "another base", "base alone", "cut", "twice"])
def test_changes_without_their_base_end_the_guest(start: Start, what: str) -> None:
    origin = start()
    origin.run("x = 1")
    older = origin.save(is_base=True)
    answer, base = origin.save(is_base=True)
    origin.run("x = 2")
    assert origin.save(since=older[0]["id"])[0] == {"ok": False, "reasons": ["what it is based on is unknown"]}
    changes = origin.save(since=answer["id"])[1]
    data = {
        "no base": changes,
        "another base": changes + older[1],
        "base alone": base,
        "cut": changes + base[:-9],
        "twice": changes + changes,
    }[what]
    guest = start()
    answer = guest.load(data, end=True)
    if what == "base alone":
        assert answer["ok"], "it is whole"
        assert guest.run("x") == "1"
    else:
        assert not answer["ok"], answer
        assert guest.exit_status() == "70"
