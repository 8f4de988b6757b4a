"""Another build of kernelmcp continues the sessions of this one, with their variables."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from kernelmcp_kernel.languages.python.build import build_runtime
from kernelmcp_kernel.runtime.places import PACKAGE

from ..added_language import link
from ..processes import children, command_line
from .support import Connect, kernel_pids
from .test_continuing import fields, text

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("TEST_KERNELSPEC", "kernelmcp") != "kernelmcp", reason="its variables are lost"),
]
BACK = "variables are back"
CHANGED = {
    "inside/kernelmcp_guest/__init__.py": ("", "\n# another build\n"),
    "languages/javascript/cells.mjs": ("", "\n// another build\n"),
}
OTHER_PROTOCOL = {"languages/kept_builds.py": ("PROTOCOL = 1", "PROTOCOL = 2")}


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a server whose kernels are of another build."""
    return {"PYTHONPATH": str(_copy(PACKAGE.parent, tmp_path_factory.mktemp("upgraded"), CHANGED))}


def _copy(package: Path, folder: Path, changes: dict[str, tuple[str, str]]) -> Path:
    copy = folder / "kernels"
    shutil.copytree(package, copy, copy_function=link, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (old, new) in changes.items():
        file = copy / "kernelmcp_kernel" / name
        content = file.read_text()
        assert old in content
        file.unlink()  # it is a link
        file.write_text(content.replace(old, new) if old else content + new)
    build_runtime(copy / "kernelmcp_kernel", lambda _: None)
    return copy


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home of its own builds, which is deleted at once: it has a thousand links."""
    folder = tmp_path / "home" / "builds"
    if folder.is_symlink():
        folder.unlink()
    folder.mkdir(parents=True)
    yield tmp_path / "home"
    shutil.rmtree(tmp_path / "home" / "builds")


async def run(client: Client, code: str, **arguments: Any) -> tuple[str | None, str]:
    result = await client.call_tool("execute_code", {"code": code, "session_id": "s", **arguments})
    return fields(result)["result"], text(result)


def builds(home: Path, language: str) -> int:
    return len(list((home / "builds").glob(f"{language}-*")))


def image_of(home: Path) -> Path:
    [found] = home.glob("builds/python-*/_runtime/boot.img")
    return found


def guest_of_test() -> int:
    """The process of Python's guest."""
    processes = [each for pid in kernel_pids() for each in children(pid)]
    [found] = [each.pid for each in processes if any("python_guest" in part for part in command_line(each))]
    return found


async def fill(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "class Point:\n    def __init__(self, x): self.x = x\npoint = Point(41)")
        await run(client, "let count = 1; function next() { return ++count }", language="javascript")


async def test_an_upgrade_loses_no_variable(connect: Connect, home: Path, upgraded: dict[str, str]) -> None:
    await fill(connect)
    for expected in ("2", "3"):  # the first loads what the build before has saved, the second what it saved itself
        async with connect(environment=upgraded) as client:
            result, said = await run(client, "point.x += 1; type(point).__name__, point.x")
            assert result == f"('Point', {40 + int(expected)})"
            assert BACK in said
            assert "Not back" not in said
            assert (await run(client, "next()", language="javascript"))[0] == expected
            # What is not in the image, and what the installation has replaced.
            assert (await run(client, "import wave; wave.__name__"))[0] == "'wave'"
    assert (builds(home, "python"), builds(home, "javascript")) == (1, 1)


async def test_what_begins_anew_is_of_the_new_build(connect: Connect, home: Path, upgraded: dict[str, str]) -> None:
    await fill(connect)
    async with connect(environment=upgraded) as client:
        await run(client, "point")
        await client.call_tool("reset_workspace", {"session_id": "s", "scope": "variables"})
        assert (await run(client, "'point' in globals()"))[0] == "False"
    assert builds(home, "python") == 2
    async with connect() as client:  # and the way back
        assert BACK in (await run(client, "1"))[1]


async def test_variables_that_are_lost_end_the_older_build(
    connect: Connect, home: Path, upgraded: dict[str, str]
) -> None:
    await fill(connect)
    async with connect(environment=upgraded) as client:
        assert (await run(client, "point.x"))[0] == "41"
        await client.call_tool("checkpoint_session", {"session_id": "s"})  # it has looked whether its build is kept
        os.kill(guest_of_test(), signal.SIGKILL)
        await client.call_tool("execute_code", {"code": "1", "session_id": "s"})
        assert (await run(client, "'point' in globals()"))[0] == "False"
    assert builds(home, "python") == 2, "what was saved last is of the new one"


async def test_an_installation_may_be_replaced_under_a_running_server(
    connect: Connect, home: Path, upgraded: dict[str, str], tmp_path: Path
) -> None:
    installed = _copy(PACKAGE.parent, tmp_path / "installed", {})
    environment = {"PYTHONPATH": str(installed)}
    async with connect(environment=environment) as client:
        await run(client, "1")
        await run(client, "let count = 1; function next() { return ++count }", language="javascript")
        await client.call_tool("checkpoint_session", {"session_id": "s"})
        shutil.rmtree(installed)
        shutil.copytree(upgraded["PYTHONPATH"], installed, copy_function=link)
        # Its next guest is of its own build as well: the kernel process is.
        os.kill(guest_of_test(), signal.SIGKILL)
        await client.call_tool("execute_code", {"code": "1", "session_id": "s"})
        assert (await run(client, "x = 41"))[0] is None
    assert (builds(home, "python"), builds(home, "javascript")) == (1, 1)
    async with connect(environment=environment) as client:
        result, said = await run(client, "x")
        assert result == "41", said
        assert (await run(client, "next()", language="javascript"))[0] == "2"


async def test_guests_that_would_not_understand_are_not_started(
    connect: Connect, home: Path, upgraded: dict[str, str], tmp_path: Path
) -> None:
    await fill(connect)
    later = {"PYTHONPATH": str(_copy(Path(upgraded["PYTHONPATH"]), tmp_path / "later", OTHER_PROTOCOL))}
    async with connect(environment=later) as client:
        result, said = await run(client, "'point' in globals()")
        assert result == "False"
        assert "it was saved by another build of kernelmcp" in said
        assert "[create_session(from_notebook='kernelmcp://sessions/s/notebook') makes" in said


async def test_a_kept_build_that_is_damaged_loses_the_variables_and_no_more(
    connect: Connect, home: Path, upgraded: dict[str, str]
) -> None:
    await fill(connect)
    image = image_of(home)
    content = image.read_bytes()
    image.unlink()  # it is a link
    image.write_bytes(content[: len(content) // 2])
    async with connect(environment=upgraded) as client:
        for _ in range(3):  # two attempts
            result = await client.call_tool("execute_code", {"code": "'point' in globals()", "session_id": "s"})
            if not result.is_error:
                break
            assert "could not be restored: no guest starts with its boot image" in text(result)
        assert fields(result)["result"] == "False"
        assert "All variables, imports and definitions" in text(result)
    assert builds(home, "python") == 2, "what was saved then is of the new one"
