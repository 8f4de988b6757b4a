"""The build of the runtime: done once, redone when an input changed, never half done."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelmcp_kernel.languages.python.build import build_runtime
from kernelmcp_kernel.runtime.build_identity import BuildError

from .conftest import ROOT, copy_kernels

pytestmark = pytest.mark.slow
MADE = ("boot.img", "boot.js", "boot.code", "boot.native")


def _silent(_: str) -> None:
    """The build's messages go nowhere."""


class Begun(Exception):
    """The first message of a build: all that comes after it is the same whatever was the reason, and is built once."""


def _begins(message: str) -> None:
    raise Begun(message)


def _contents(runtime: Path) -> dict[str, bytes]:
    return {file.relative_to(runtime).as_posix(): file.read_bytes() for file in runtime.rglob("*") if file.is_file()}


@pytest.fixture
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """npm and pip find nothing, neither outside nor in what they have cached."""
    monkeypatch.setenv("npm_config_offline", "true")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")


@pytest.fixture(scope="module")
def up_to_date(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `kernels` that is built once: the sources may be newer than the last installation."""
    package_dir = copy_kernels(ROOT / "kernels", tmp_path_factory.mktemp("up-to-date"))
    build_runtime(package_dir, _silent)
    return package_dir.parent


@pytest.fixture
def built(up_to_date: Path, tmp_path: Path, no_network: None) -> Path:
    """A copy of the package with a runtime that is up to date."""
    return copy_kernels(up_to_date, tmp_path)


def test_a_second_build_does_nothing(built: Path) -> None:
    before = _contents(built / "_runtime")
    assert build_runtime(built, _silent) is False
    assert _contents(built / "_runtime") == before


def test_a_changed_guest_source_rebuilds_only_the_image(built: Path) -> None:
    before = _contents(built / "_runtime")
    with (built / "inside" / "kernelmcp_guest" / "__init__.py").open("a") as source:
        source.write("\nADDED = 1\n")
    messages: list[str] = []
    assert build_runtime(built, messages.append) is True
    after = _contents(built / "_runtime")
    assert messages == ["kernelmcp: building the boot image"]
    assert {name for name in after if after[name] != before.get(name)} == {*MADE, "stamp.json"}
    assert after.keys() == before.keys()


@pytest.mark.parametrize("name", MADE)
def test_what_is_missing_is_built_again(built: Path, name: str) -> None:
    (built / "_runtime" / name).unlink()
    with pytest.raises(Begun, match="building the boot image"):
        build_runtime(built, _begins)


def test_what_is_missing_is_there_after_a_build(built: Path) -> None:
    for name in MADE:
        (built / "_runtime" / name).unlink()
    assert build_runtime(built, _silent) is True
    assert all((built / "_runtime" / name).is_file() for name in MADE)
    assert build_runtime(built, _silent) is False


def test_a_module_that_the_bundle_cannot_hold_fails_the_build_and_keeps_what_was_there(built: Path) -> None:
    module = built / "host" / "frames.mjs"
    module.write_text(module.read_text("utf-8") + "\nexport let frames = 0;\n", "utf-8")
    before = _contents(built)
    with pytest.raises(BuildError, match=r'frames\.mjs: the bundle does not know "export let frames'):
        build_runtime(built, _silent)
    assert _contents(built) == before


@pytest.mark.parametrize(("line", "said"), [("1 / 0", "ZeroDivisionError"), ("import os; os.abort()", "in cell 100")])
def test_a_training_that_fails_fails_the_build_and_keeps_what_was_there(built: Path, line: str, said: str) -> None:
    with (built / "inside" / "kernelmcp_guest" / "training.py").open("a") as training:
        training.write(f"{line}\n")
    before = _contents(built)
    with pytest.raises(BuildError, match=said):
        build_runtime(built, _silent)
    assert _contents(built) == before


@pytest.mark.parametrize(
    "damaged",
    [
        "../package-lock.json",
        "../requirements-guest.txt",
        "../vega-lock.json",
        "_runtime/pyodide/pyodide.asm.wasm",
        "_runtime/site/comm/__init__.py",
        "_runtime/vega/node_modules/vega/build/vega.min.js",
    ],
)
def test_what_is_damaged_is_fetched_again(built: Path, damaged: str) -> None:
    file = built / damaged
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(Begun, match="fetching Pyodide"):
        build_runtime(built, _begins)


def test_without_network_a_needed_build_fails_and_leaves_what_was_there(built: Path) -> None:
    (built / "_runtime" / "site" / "comm" / "__init__.py").unlink()
    before = _contents(built)
    with pytest.raises(BuildError, match="npm packages"):
        build_runtime(built, _silent)
    assert _contents(built) == before


def test_a_failing_image_build_shows_what_node_said_and_keeps_the_old_image(built: Path) -> None:
    program = built / "host" / "build_image.mjs"
    program.write_text('throw new Error("the guest would not warm up");\n')
    before = _contents(built)
    with pytest.raises(BuildError, match="the guest would not warm up"):
        build_runtime(built, _silent)
    assert _contents(built) == before


def test_what_an_interrupted_build_left_is_swept(built: Path) -> None:
    before = {entry.name for entry in built.iterdir() if entry.is_dir()}
    (built / "_runtime.building-abc" / "pyodide").mkdir(parents=True)
    (built / "_runtime.replaced-abc" / "old").mkdir(parents=True)
    (built / "_runtime" / "boot.img.1.building").touch()
    assert build_runtime(built, _silent) is False
    assert {entry.name for entry in built.iterdir() if entry.is_dir()} == before
    assert not list((built / "_runtime").glob("*.building"))
