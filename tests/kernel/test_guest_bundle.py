"""The bundle that a Python guest is started with, and the code that V8 compiled of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kernelmcp_kernel.languages.python import image
from kernelmcp_kernel.languages.python.guest_bundle import code_of
from kernelmcp_kernel.languages.python.image import plain_image
from kernelmcp_kernel.runtime.build_identity import node_binary
from kernelmcp_kernel.runtime.guest_process import Launch
from kernelmcp_kernel.runtime.node import node_flags
from kernelmcp_kernel.runtime.places import HOST, PACKAGE, RUNTIME

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


def test_the_bundle_has_every_module_of_a_guest_line_for_line() -> None:
    """A line of a stack trace is found in the sources."""
    text = _bundle().read_text("ascii")
    modules = _modules("python_guest.mjs", set()) - {"pyodide_modules.mjs"}
    assert len(modules) > 20
    for name in modules:
        parts = OF_THE_MODULE_SYSTEM.sub("\0", (HOST / name).read_text("utf-8")).strip().split("\0")
        pattern = "[^\n]*".join(re.escape(part) for part in parts)
        assert re.search(pattern, text), name


def _taken(folder: Path, *flags: str) -> str:
    (folder / "say.cjs").write_text(SAY)
    bundle = _bundle()
    program = [node_binary(), *flags, "--allow-fs-read=*", HOST / "start_guest.cjs", bundle, code_of(bundle), "{}"]
    environment = {"NODE_OPTIONS": f"--require={folder / 'say.cjs'}"}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize("memory_mb", [64, 512, 1024, 4096])
def test_v8_takes_the_code_whatever_memory_a_session_has(tmp_path: Path, memory_mb: int) -> None:
    *flags, pages = node_flags()
    assert pages.startswith("--wasm-max-mem-pages=")
    assert _taken(tmp_path, *flags, f"--wasm-max-mem-pages={memory_mb * 16}") == "true"


def test_code_of_other_flags_is_not_used(tmp_path: Path) -> None:
    assert _taken(tmp_path, *node_flags(), "--no-opt") not in ("true", "false")


@contextmanager
def _guest(folder: Path, change: Callable[[Launch], Launch]) -> Iterator[StateGuest]:
    guest = StateGuest(folder, change)
    try:
        yield guest
    finally:
        guest.close()


def _with_code(code: Path) -> Callable[[Launch], Launch]:
    def change(launch: Launch) -> Launch:
        place = launch.program.index(str(code_of(_bundle())))
        program = [*launch.program[:place], str(code), *launch.program[place + 1 :]]
        program.insert(1, f"--allow-fs-read={code}")
        return replace(launch, program=program, readable=(*launch.readable, code))

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
    with _guest(tmp_path / "sandbox", _with_code(code)) as guest:
        assert guest.run("6 * 7") == "42"


def test_a_guest_cannot_change_its_bundle_or_its_code(tmp_path: Path) -> None:
    files = [_bundle(), code_of(_bundle())]
    before = [file.stat().st_mtime_ns for file in files]
    with _guest(tmp_path / "sandbox", lambda launch: launch) as guest:
        assert str(files[0]) in " ".join(_command_line(guest))
        cell = "from pyodide.code import run_js\n"
        cell += f"for file in {[str(file) for file in files]}:\n"
        cell += '    run_js(\'(file) => import("node:fs").then(fs => fs.appendFileSync(file, "//"))\')(file)'
        guest.run(cell)
        assert guest.run("1") == "1"
    assert [file.stat().st_mtime_ns for file in files] == before


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
