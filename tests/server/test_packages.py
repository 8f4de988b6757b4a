"""`install_package`, and packages that come back: one session of a person, over three server processes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from kernelmcp_kernel.packages.store import sha256_of

from ..kernel.wheels import Index, make_wheel, serve_index
from .support import Connect

pytestmark = pytest.mark.anyio


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with serve_index(tmp_path / "index") as index:
        index.add("alpha", requires=("beta",))
        index.add("beta")
        index.add("native", tag="cp314-cp314-manylinux_2_28_x86_64")
        yield index


async def install(client: Client, name: Any, session_id: str = "s", **options: Any) -> tuple[bool, dict[str, Any]]:
    arguments = {"package_name": name, "session_id": session_id}
    result = await client.call_tool("install_package", arguments, **options)
    assert result.structured_content is not None
    return bool(result.is_error), result.structured_content


async def run(client: Client, code: str, session_id: str = "s") -> dict[str, Any]:
    result = await client.call_tool("execute_code", {"code": code, "session_id": session_id})
    assert result.structured_content is not None
    return result.structured_content


async def test_what_an_import_installs_is_progress_and_no_output(
    connect: Connect, tmp_path: Path, kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernel installs nothing by itself")
    wheel = make_wheel(tmp_path / "pyodide", "known")
    entry = {"name": "known", "file_name": wheel.name, "sha256": sha256_of(wheel), "depends": [], "imports": ["known"]}
    (tmp_path / "pyodide" / "pyodide-lock.json").write_text(json.dumps({"packages": {"known": entry}}))
    progress: list[str | None] = []

    async def on_progress(_done: float, _total: float | None, message: str | None) -> None:
        progress.append(message)

    async with connect(PACKAGES__PYODIDE_URL=str(tmp_path / "pyodide")) as client:
        code = {"code": "import known; known.version"}
        result = await client.call_tool("execute_code", code, progress_callback=on_progress)
        assert result.structured_content is not None
        assert (result.structured_content["result"], result.structured_content["stdout"]) == ("'1.0'", "")
        assert "".join(map(str, progress)).startswith("`import known` installs:\n  known-1.0-py3-none-any.whl")


@pytest.mark.slow
async def test_install_package_and_the_session_keeps_it(
    connect: Connect, index: Index, tmp_path: Path, kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernel has its own %pip")
    settings = {
        "PACKAGES__INDEX_URL": index.url,
        "PACKAGES__PYODIDE_URL": str(tmp_path / "pyodide"),
        "PACKAGES__DENIED": '["forbidden"]',
    }
    progress: list[str | None] = []

    async def on_progress(_done: float, _total: float | None, message: str | None) -> None:
        progress.append(message)

    async with connect(**settings) as client:
        failed, found = await install(client, ["alpha"], progress_callback=on_progress)
        assert not failed
        assert found["session_id"] == "s"
        assert found["status"] == "ok"
        assert sorted((package["name"], package["version"], package["source"]) for package in found["installed"]) == [
            ("alpha", "1.0", "pypi"),
            ("beta", "1.0", "pypi"),
        ]
        assert found["already_present"] == []
        assert found["duration_ms"] > 0
        assert any("alpha" in str(message) for message in progress)
        assert (await run(client, "import alpha; alpha.version"))["result"] == "'1.0'"

        failed, found = await install(client, "alpha")
        assert (failed, found["installed"], found["already_present"]) == (
            False,
            [],
            [{"name": "alpha", "version": "1.0"}],
        )

        for name, code in {
            "absent": "PACKAGE_NOT_FOUND",
            "native": "PACKAGE_NOT_FOUND",
            "alpha>=2": "PACKAGE_INSTALL_FAILED",
            "forbidden": "PERMISSION_DENIED",
            "--pre": "INVALID_ARGUMENT",
            "../x": "INVALID_ARGUMENT",
            "x @ file:///etc/passwd": "INVALID_ARGUMENT",
            "x\nprint(1)": "INVALID_ARGUMENT",
            "{1/0}": "INVALID_ARGUMENT",
            "$HOME": "INVALID_ARGUMENT",
        }.items():
            failed, found = await install(client, name)
            assert (failed, found["error"]["error_code"]) == (True, code), name
            assert found["error"]["recovery_suggestions"], name
        failed, found = await install(client, "alpha beta")
        assert found["error"]["recovery_suggestions"] == ['Pass a list of requirements: ["alpha", "beta"].']
        failed, found = await install(client, [])
        assert found["error"]["error_code"] == "INVALID_ARGUMENT"

        await client.call_tool("reset_workspace", {"session_id": "s", "scope": "variables"})
        assert (await run(client, "import alpha; alpha.version"))["result"] == "'1.0'"
        await client.call_tool("stop_session", {"session_id": "s"})

    async with connect(**settings) as client:
        again = await run(client, "import alpha, beta; alpha.version")
        assert again["result"] == "'1.0'", again["error"]
        assert not again["state_lost"]
        assert again["stderr"] == ""
        await install(client, "beta", session_id="other")
        await install(client, "alpha", session_id="stopped")
        await client.call_tool("stop_session", {"session_id": "stopped"})
        for session_id in ("s", "stopped"):
            await client.call_tool("reset_workspace", {"session_id": session_id})
            after = await run(client, "import alpha", session_id=session_id)
            assert after["error"]["name"] == "ModuleNotFoundError", session_id

    # Gone from the cache and from the index: it is named, once, and the session goes on.
    (tmp_path / "home" / "packages").rename(tmp_path / "gone")
    (index.folder("beta") / "beta-1.0-py3-none-any.whl").unlink()
    async with connect(**settings) as client:
        after = await run(client, "1 + 1", session_id="other")
        assert (after["result"], after["status"]) == ("2", "ok")
        assert "packages that this session had are missing: beta" in after["stderr"]
        assert (await run(client, "1 + 1", session_id="other"))["stderr"] == ""


async def test_a_stand_in_and_what_is_left_out_are_told_and_come_back(
    connect: Connect, index: Index, tmp_path: Path, kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernel has its own %pip")
    (tmp_path / "pyodide").mkdir()
    index.add("langsmith", requires=("orjson>=3", "zstandard>=0.23"))
    settings = {"PACKAGES__INDEX_URL": index.url, "PACKAGES__PYODIDE_URL": str(tmp_path / "pyodide")}
    async with connect(**settings) as client:
        result = await client.call_tool("install_package", {"package_name": "langsmith", "session_id": "s"})
        text = result.content[0].text
        first, *notes = text.splitlines()
        assert first.startswith("Installed ")
        assert "langsmith 1.0" in first
        assert sorted(note.partition(" 3")[0].partition(" is ")[0] for note in notes) == ["langsmith", "orjson"], text
        assert {package["source"] for package in result.structured_content["installed"]} == {"pypi", "stand-in"}
        await client.call_tool("stop_session", {"session_id": "s"})
    async with connect(**settings) as client:
        again = await run(client, "import langsmith, orjson; orjson.dumps([1])")
        assert (again["result"], again["stderr"]) == ("b'[1]'", "")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "import installs any of 2"),
        ({"PACKAGES__PYODIDE_URL": "/nowhere"}, "import installs packages of Pyodide's distribution when missing"),
        ({"PACKAGES__AUTO_INSTALL": "false"}, None),
        ({"PACKAGES__ALLOWED": '["six"]'}, None),
    ],
)
async def test_what_an_import_brings_is_told_with_what_is_there(
    connect: Connect, kernelspec: str, settings: dict[str, str], says: str | None
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernel installs nothing by itself")
    async with connect(**settings) as client:
        for tool in ("get_workspace_info", "list_runtimes"):
            text = (await client.call_tool(tool, {})).content[0].text
            assert ("import installs" in text) == (says is not None)
            assert (says or "") in text
            assert ("%pip list --available names them" in text) == (says is not None)
            assert len(text) < 500


async def test_an_installation_that_outlasts_its_call_says_the_same_later(
    connect: Connect, index: Index, tmp_path: Path, kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernel has its own %pip")
    settings = {
        "PACKAGES__INDEX_URL": index.url,
        "PACKAGES__PYODIDE_URL": str(tmp_path / "pyodide"),
        "SESSIONS__INLINE_WAIT_SECONDS": "0.2",
    }
    there = {"name": "beta", "version": "1.0", "source": "pypi"}

    async def finished(client: Client, execution_id: str) -> tuple[str, dict[str, Any]]:
        while True:
            result = await client.call_tool("get_execution", {"execution_id": execution_id})
            assert result.structured_content is not None
            if result.structured_content["status"] != "running":
                return result.content[0].text, result.structured_content

    async with connect(**settings) as client:
        await run(client, "1")
        ids: list[str] = []
        for name in ("stalled", "beta"):
            with index.stalled():
                failed, found = await install(client, name)
                assert (failed, found["status"], found["installed"]) == (False, "running", [])
                ids.append(found["execution_id"])
        text, found = await finished(client, ids[0])
        assert text.startswith("PACKAGE_NOT_FOUND: stalled: no source has a package")
        assert "\n- Check the spelling" in text
        assert (found["success"], found["error"]["name"]) == (False, "PackageNotFound")
        assert found["error"]["error_code"] == "PACKAGE_NOT_FOUND"
        text, found = await finished(client, ids[1])
        assert "Successfully installed beta-1.0" in text
        assert (found["installed"], found["already_present"]) == ([there], [])
        assert "installed" not in await run(client, "1")

    async with connect(**settings) as client:
        assert (await finished(client, ids[1]))[1]["installed"] == [there]
        assert (await finished(client, ids[0]))[1]["error"]["error_code"] == "PACKAGE_NOT_FOUND"
