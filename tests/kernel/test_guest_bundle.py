"""The bundle that a Python guest is started with, and the code that V8 compiled of it and of CPython."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelmcp_kernel.languages.python import image
from kernelmcp_kernel.languages.python.guest_bundle import code_of, native_of
from kernelmcp_kernel.languages.python.image import plain_image
from kernelmcp_kernel.runtime.build_identity import node_binary
from kernelmcp_kernel.runtime.guest_process import Launch
from kernelmcp_kernel.runtime.node import COMPILED_LATER, node_flags
from kernelmcp_kernel.runtime.places import HOST, PACKAGE, RUNTIME

from .driver import Kernel
from .state_guest import StateGuest

OF_THE_MODULE_SYSTEM = re.compile(r"^(import .*|export (?=\w))", re.MULTILINE)
# Says whether V8 takes the code of a bundle, and ends.
SAY = """
const vm = require("node:vm");
const { Script } = vm;
vm.Script = class extends Script {
  constructor(source, options) {
    super(source, options);
    if (source.length < 100) return;
    console.log(!this.cachedDataRejected);
    process.exit(0);
  }
};
"""

# Says what becomes of CPython's machine code, and ends: "taken", "refused" by V8, "compiled" because none was loaded.
SAY_OF_NATIVE = """
const vm = require("node:vm");
const say = (what) => { console.log(what); process.exit(0); };
const { Script } = vm;
vm.Script = class extends Script {
  constructor(source, options) {
    super(source, options);
    this.loads = source.includes("%DeserializeWasmModule");
  }
  runInThisContext() {
    const result = super.runInThisContext();
    return this.loads ? (...args) => say(result(...args) instanceof WebAssembly.Module ? "taken" : "refused") : result;
  }
};
WebAssembly.compile = () => say("compiled");
"""
LEAD_BYTES = 256
# At least so many has CPython.
FUNCTIONS = 10_000


def _bundle() -> Path:
    bundle = plain_image().bundle
    assert bundle, "the sources are newer than the bundle: start a kernel, or install again"
    return bundle


def _modules(name: str, found: set[str]) -> set[str]:
    """The modules of host/ that one imports."""
    if name not in found:
        found.add(name)
        for other in re.findall(r'^import .* from "(\.[^"]+)";$', (HOST / name).read_text("utf-8"), re.MULTILINE):
            _modules((HOST / name).parent.joinpath(other).resolve().relative_to(HOST).as_posix(), found)
    return found


@pytest.mark.parametrize(
    ("main", "fewest"), [("python_guest.mjs", 21), ("wheel.mjs", 8), ("compile.mjs", 7), ("build_image.mjs", 7)]
)
def test_the_bundle_has_every_module_of_a_program_line_for_line(main: str, fewest: int) -> None:
    """A line of a stack trace is found in the sources."""
    text = _bundle().read_text("ascii")
    modules = _modules(main, set()) - {"pyodide_modules.mjs"}
    assert len(modules) >= fewest
    assert modules >= {main, "image.mjs", "libraries.mjs"}
    for name in modules:
        parts = OF_THE_MODULE_SYSTEM.sub("\0", (HOST / name).read_text("utf-8")).strip().split("\0")
        pattern = "[^\n]*".join(re.escape(part) for part in parts)
        assert re.search(pattern, text), name


def _started(
    environment: dict[str, str],
    *flags: str,
    native: Path | None = None,
    address_space_mb: int | None = None,
    **files: Any,
) -> subprocess.CompletedProcess[str]:
    """A guest that has none of its descriptors; without `files` it ends when it has loaded Pyodide."""
    bundle, image = _bundle(), plain_image()
    settings = {"runtime": str(RUNTIME), "image": str(image.path), "build_id": image.build_id, **files}
    program = [node_binary(), *flags, "--allow-fs-read=*", HOST / "start_guest.cjs", bundle, code_of(bundle)]
    program += [native or native_of(bundle), "python_guest.mjs", json.dumps(settings)]
    if address_space_mb:
        program = ["sh", "-c", f'ulimit -v {address_space_mb << 10}; exec "$@"', "sh", *program]
    return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)


def _taken(
    folder: Path, *flags: str, say: str = SAY, native: Path | None = None, address_space_mb: int | None = None
) -> str:
    (folder / "say.cjs").write_text(say)
    environment = {"NODE_OPTIONS": f"--require={folder / 'say.cjs'}"}
    done = _started(environment, *flags, native=native, address_space_mb=address_space_mb)
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize("memory_mb", [64, 512, 1024, 4096])
def test_v8_takes_the_code_whatever_memory_a_session_has(tmp_path: Path, memory_mb: int) -> None:
    *flags, pages = node_flags()
    assert pages.startswith("--wasm-max-mem-pages=")
    assert _taken(tmp_path, *flags, f"--wasm-max-mem-pages={memory_mb * 16}") == "true"


@pytest.mark.parametrize("memory_mb", [64, 512, 1024, 4096])
def test_v8_takes_the_machine_code_whatever_memory_a_session_has(tmp_path: Path, memory_mb: int) -> None:
    *flags, _ = node_flags()
    assert _taken(tmp_path, *flags, f"--wasm-max-mem-pages={memory_mb * 16}", say=SAY_OF_NATIVE) == "taken"


def test_a_guest_compiles_later_and_takes_the_code_all_the_same(kernel: Kernel, tmp_path: Path) -> None:
    """docs/design.md 190: half of what `import pandas` took was the compilation of what runs once."""
    kernel.run("1")
    assert COMPILED_LATER in kernel.guests()[0].cmdline()
    assert _taken(tmp_path, COMPILED_LATER, *node_flags()) == "true"
    assert _taken(tmp_path, COMPILED_LATER, *node_flags(), say=SAY_OF_NATIVE) == "taken"


def test_a_start_loads_few_of_nodes_own_modules(tmp_path: Path) -> None:
    """V8 compiles them, because a guest's flags are not Node's."""
    folder = str(tmp_path)
    files = dict.fromkeys(["workspace", "tmp", "offered"], folder) | {"volumes": [], "working_directory": "/workspace"}
    rest = {"seed": "1", "quota": {"max_bytes": 1, "max_files": 1}, "how_to_see_more": ""}
    environment = {"NODE_DEBUG_NATIVE": "CODE_CACHE"}
    done = _started(environment, *node_flags(), f"--allow-fs-write={folder}", **files, **rest)
    assert "Unsupported fd type" in done.stderr, "it has not come to its requests, the last that it does"
    compiled = set(re.findall(r"^Compiling (\S+) with code cache", done.stderr, re.MULTILINE))
    assert compiled >= {"net", "zlib", "stream"}
    assert compiled.isdisjoint(
        {"crypto", "fs/promises", "internal/fs/promises", "internal/fs/streams", "perf_hooks", "tty"}
    )
    assert len(compiled) < 40


def _lead(data: bytes) -> dict[str, Any]:
    return dict(json.loads(data[:LEAD_BYTES]))


def _sealed(data: bytes, **lead: Any) -> bytes:
    """With a lead that says that its code is whole, and this."""
    said = _lead(data) | {"crc32": zlib.crc32(data[LEAD_BYTES:])} | lead
    return json.dumps(said, separators=(",", ":")).ljust(LEAD_BYTES - 1).encode() + b"\n" + data[LEAD_BYTES:]


def _of_v8(data: bytes) -> int:
    """Where V8's own begins: behind the lead and the script that loads it."""
    return LEAD_BYTES + int(_lead(data)["sizes"][0])


@pytest.mark.parametrize(
    ("change", "becomes"),
    [
        (lambda data: data, "taken"),
        (lambda data: _sealed(data), "taken"),
        (lambda data: data[: len(data) // 2], "compiled"),
        (lambda data: b"", "compiled"),
        (lambda data: _flip(data, len(data) // 2), "compiled"),
        (lambda data: re.sub(rb'"source":\d', b'"source":0', data, count=1), "compiled"),
        (lambda data: _sealed(_flip(data, _of_v8(data) + 8)), "refused"),  # what the processor can
        (lambda data: _sealed(_flip(data, _of_v8(data) + 4)), "refused"),  # V8's version
        (lambda data: _sealed(_flip(data, LEAD_BYTES + 4)), "compiled"),  # V8's version, in the script
        (lambda data: _sealed(data, sizes=[1 << 53, 1]), "compiled"),
        (lambda data: _sealed(data, sizes=[-1, 1]), "compiled"),
        (lambda data: _sealed(data, sizes=[size + 1 for size in _lead(data)["sizes"]]), "compiled"),
        (lambda data: _sealed(data, sizes=None), "compiled"),
        (lambda data: _sealed(data[: _of_v8(data)], sizes=_lead(data)["sizes"][:1]), "compiled"),
        (lambda data: _sealed(data[:LEAD_BYTES], sizes=[]), "compiled"),
    ],
    ids=[
        "whole",
        "sealed",
        "half",
        "empty",
        "damaged",
        "of another CPython",
        "of another processor",
        "of another V8",
        "script of another V8",
        "a part of all memory",
        "a part of less than nothing",
        "parts that are longer",
        "no list of parts",
        "only the script",
        "nothing",
    ],
)
def test_machine_code_that_does_not_fit_is_not_used(
    tmp_path: Path, change: Callable[[bytes], bytes], becomes: str
) -> None:
    native = tmp_path / "changed"
    native.write_bytes(change(native_of(_bundle()).read_bytes()))
    assert _taken(tmp_path, *node_flags(), say=SAY_OF_NATIVE, native=native) == becomes
    if becomes != "taken":
        with _guest(tmp_path / "sandbox", _with(native_of(_bundle()), native)) as guest:
            assert guest.run("6 * 7") == "42"


def test_without_the_file_a_guest_compiles(tmp_path: Path) -> None:
    assert _taken(tmp_path, *node_flags(), say=SAY_OF_NATIVE, native=tmp_path / "none") == "compiled"


def test_the_training_leaves_functions_their_usual_budget() -> None:
    """What a function may run until V8 compiles it better; in the training it is small."""
    said = subprocess.run([node_binary(), "--v8-options"], capture_output=True, text=True, timeout=60).stdout
    found = re.search(r"--wasm-tiering-budget=(\d+)$", said, re.MULTILINE)
    assert found
    budgets = struct.unpack(f"<{FUNCTIONS}I", native_of(_bundle()).read_bytes()[-4 * FUNCTIONS :])
    assert set(budgets) == {int(found[1])}


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not limit the address space")
@pytest.mark.parametrize(("address_space_mb", "becomes"), [(32_000, "taken"), (6_000, "refused")])
def test_without_guard_pages_machine_code_that_relies_on_them_is_not_used(
    tmp_path: Path, address_space_mb: int, becomes: str
) -> None:
    """V8 then checks each access to memory, in code that it compiles itself."""
    found = _taken(tmp_path, *node_flags(), say=SAY_OF_NATIVE, address_space_mb=address_space_mb)
    assert found == becomes


def test_a_guest_has_the_functions_of_v8s_tests_switched_off(tmp_path: Path) -> None:
    with _guest(tmp_path / "sandbox", lambda launch: launch) as guest:
        words = _command_line(guest)
    (tmp_path / "call.cjs").write_text("%CollectGarbage(0)")
    flags = [word for word in words[1:] if word.startswith("--") and not word.startswith("--allow-fs")]
    program = [node_binary(), *flags, "--allow-fs-read=*", tmp_path / "call.cjs"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert "SyntaxError: Unexpected token '%'" in done.stderr


def test_code_of_other_flags_is_not_used(tmp_path: Path) -> None:
    assert _taken(tmp_path, *node_flags(), "--no-opt") not in ("true", "false")


@contextmanager
def _guest(folder: Path, change: Callable[[Launch], Launch]) -> Iterator[StateGuest]:
    guest = StateGuest(folder, change)
    try:
        yield guest
    finally:
        guest.close()


def _with(file: Path, other: Path) -> Callable[[Launch], Launch]:
    """Another file in the place of one."""

    def change(launch: Launch) -> Launch:
        place = launch.program.index(str(file))
        program = [*launch.program[:place], str(other), *launch.program[place + 1 :]]
        program.insert(1, f"--allow-fs-read={other}")
        return replace(launch, program=program, readable=(*launch.readable, other))

    return change


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: _flip(data, len(data) // 2),
        lambda data: _flip(data, 5),
        lambda data: data.replace(b'"arch":"', b'"arch":"z', 1),
    ],
    ids=["half", "empty", "damaged", "damaged lead", "another machine's"],
)
def test_code_that_does_not_fit_is_not_used(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    code = tmp_path / "damaged"
    code.write_bytes(damage(code_of(_bundle()).read_bytes()))
    with _guest(tmp_path / "sandbox", _with(code_of(_bundle()), code)) as guest:
        assert guest.run("6 * 7") == "42"


# Prints what of the heap is not as the image has it, when it has been put back: the first address.
SAY_OF_THE_HEAP = """
import fs from "node:fs";
import { Image } from "%(host)s/image.mjs";
import { loadRuntime } from "%(host)s/pyodide.mjs";

const [STACK, BLOCK] = [300_000, 30_000_000]; // what a start-up might write, much more than it does
const [runtime, file, id] = process.argv.slice(2);
const image = new Image(file, id);
function wanted(length) {
  const heap = Buffer.alloc(length);
  let at = image.position;
  for (const [start, size] of image.header.runs) at += fs.readSync(image.fd, heap, start, size, at);
  return heap;
}
const loadOptions = (factory) => {
  const options = image.loadOptions(factory);
  const createPyodideModule = async (settings) => {
    const module = await options.createPyodideModule(settings);
    const { restoreSnapshot } = module.API;
    module.API.restoreSnapshot = () => {
      const { malloc, emscripten_stack_get_base } = module.LDSO.loadedLibsByName.__main__.exports;
      const base = emscripten_stack_get_base();
      module.HEAPU8.fill(255, base - STACK, base);
      const block = malloc(BLOCK);
      module.HEAPU8.fill(255, block, block + BLOCK);
      restoreSnapshot();
      const expected = wanted(module.HEAPU8.length);
      console.log(module.HEAPU8.findIndex((byte, at) => byte !== expected[at]));
      process.exit();
    };
    return module;
  };
  return { ...options, createPyodideModule };
};
await loadRuntime(runtime, { loadOptions });
"""


def test_what_a_start_has_written_is_not_in_the_heap_that_is_put_back(tmp_path: Path) -> None:
    """What it cannot have written is not even looked at."""
    program = tmp_path / "say.mjs"
    program.write_text(SAY_OF_THE_HEAP % {"host": HOST})
    image = plain_image()
    arguments = [node_binary(), *node_flags(), "--allow-fs-read=*", program, RUNTIME, image.path, image.build_id]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "-1", done.stderr


def test_the_standard_library_is_read_from_a_file_that_no_guest_can_change(kernel: Kernel) -> None:
    assert kernel.run("import wave; wave.__file__").result == "'/lib/python314.zip/wave.py'"
    for path in ("/lib/python314.zip", "/lib/pyodide/python_stdlib.zip", "/lib/pyodide/new"):
        assert kernel.run(f"open({path!r}, 'ab')").error.split(":")[0] in ("PermissionError", "OSError"), path
    assert kernel.run("import os; os.remove('/lib/pyodide/python_stdlib.zip')").error.split(":")[0] in (
        "PermissionError",
        "OSError",
    )
    library = RUNTIME / "pyodide" / "python_stdlib.zip"
    assert kernel.run("len(open('/lib/python314.zip', 'rb').read())").result == str(library.stat().st_size)


def _names_of_the_main_module() -> list[str]:
    """What it exports, and what it takes from Emscripten's table of addresses."""
    program = """
    const module = new WebAssembly.Module(fs.readFileSync(process.argv[1]));
    const imported = WebAssembly.Module.imports(module).filter((each) => each.module.startsWith("GOT."));
    console.log(JSON.stringify([...WebAssembly.Module.exports(module), ...imported].map((each) => each.name)));
    """
    arguments = [node_binary(), "-e", program, RUNTIME / "pyodide" / "pyodide.asm.wasm"]
    return json.loads(subprocess.run(arguments, capture_output=True, check=True, timeout=60).stdout)


def _placed(guest: StateGuest, names: list[str]) -> tuple[dict[str, int], list[str]]:
    """The address of each name, and of each entry of the table of functions its parameters and place in its module."""
    (guest.workspace / "names").write_text(json.dumps(names))
    guest.run("import json, pathlib, pyodide_js; module = pyodide_js._module")
    guest.run("names = json.loads(pathlib.Path('/workspace/names').read_text())")
    guest.run("found = {name: address.value for name in names if (address := getattr(module.GOT, name, None))}")
    guest.run("entries = [module.wasmTable.get(at) for at in range(module.wasmTable.length)]")
    guest.run("entries = [f'{entry.length} {entry.name}' if entry else '' for entry in entries]")
    guest.run("pathlib.Path('/workspace/placed').write_text(json.dumps([found, entries]))")
    found, entries = json.loads((guest.workspace / "placed").read_text())
    return found, entries


def test_a_bundle_places_the_main_modules_names_where_emscripten_does(tmp_path: Path) -> None:
    """A heap, a saved one too, and side modules hold these addresses."""
    no_code = tmp_path / "empty"
    no_code.touch()
    names = _names_of_the_main_module()
    with _guest(tmp_path / "bundled", lambda launch: launch) as guest:
        addresses, entries = _placed(guest, names)
    with _guest(tmp_path / "from modules", _with(code_of(_bundle()), no_code)) as guest:
        expected_addresses, expected_entries = _placed(guest, names)
    assert len(addresses) > 8_000
    assert addresses == expected_addresses
    wrappers = {addresses[name] for name in names[-280:]}
    assert len(wrappers) > 200
    assert [entry.split(" ")[0] for entry in entries] == [entry.split(" ")[0] for entry in expected_entries]
    own = [at for at in range(len(entries)) if at not in wrappers]
    assert [entries[at] for at in own] == [expected_entries[at] for at in own]


def test_c_finds_the_main_modules_functions_and_data_by_name(tmp_path: Path) -> None:
    with _guest(tmp_path / "sandbox", lambda launch: launch) as guest:
        guest.run("import ctypes; from ctypes import pythonapi")
        assert guest.run("pythonapi.PyLong_AsLong(ctypes.py_object(42))") == "42"
        assert guest.run("ctypes.py_object.in_dll(pythonapi, 'PyExc_KeyError').value is KeyError") == "True"
        assert guest.run("ctypes.CDLL(None).strlen(b'hello')") == "5"
        for name in ("no_such_name", "toString", "constructor"):
            assert f'Tried to lookup unknown symbol "{name}"' in guest.run(f"getattr(pythonapi, {name!r})")


def _owned(launch: Launch) -> Launch:
    """A guest that has Node's own objects and Node's permission: only the operating system is left."""
    program = [word.replace('"keep_globals": false', '"keep_globals": true') for word in launch.program]
    return replace(launch, program=[program[0], "--allow-fs-write=*", *program[1:]])


@pytest.mark.parametrize("suffix", [".js", ".code", ".native"])
def test_a_guest_cannot_change_its_bundle_or_its_code(tmp_path: Path, suffix: str) -> None:
    file = _bundle().with_suffix(suffix)
    before = file.stat().st_mtime_ns
    with _guest(tmp_path / "sandbox", _owned) as guest:
        assert str(file) in " ".join(_command_line(guest))
        fs = 'import js; fs = js.process.getBuiltinModule("fs")'
        assert guest.run(f"{fs}; fs.statSync({str(file)!r}).size") == str(file.stat().st_size)
        assert "EACCES: permission denied" in guest.run(f"fs.appendFileSync({str(file)!r}, '//')")
    assert file.stat().st_mtime_ns == before


def _command_line(guest: StateGuest) -> list[str]:
    return Path(f"/proc/{guest._spawned.pid}/cmdline").read_text().split("\0")


@pytest.mark.parametrize("name", ["host/frames.mjs", "host/state/load_state.mjs", "host/start_guest.cjs"])
def test_a_bundle_of_other_sources_is_not_used(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "kernelmcp_kernel"
    for folder in ("host", "inside"):
        shutil.copytree(PACKAGE / folder, package / folder)
    (package / "_runtime").mkdir()
    shutil.copy(RUNTIME / "stamp.json", package / "_runtime")
    monkeypatch.setattr(image, "PACKAGE", package)
    assert plain_image().bundle == _bundle()
    with (package / name).open("a") as file:
        file.write("\n")
    assert plain_image().bundle is None
