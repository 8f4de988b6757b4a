"""What the start of a server does without."""

from __future__ import annotations

import gc
import json
import pwd
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager

from kernelmcp import cli
from kernelmcp.config.load import load
from kernelmcp.errors import ConfigurationError
from kernelmcp.files.volumes import check_volumes
from kernelmcp.kernel.kernelspecs import Kernelspecs


@pytest.mark.parametrize("own", [None, "~/elsewhere"])
def test_kernelspecs_are_looked_for_where_jupyter_client_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    if own is None:
        monkeypatch.delenv("IPYTHONDIR", raising=False)
    else:
        monkeypatch.setenv("IPYTHONDIR", own)
    assert Kernelspecs().kernel_dirs == KernelSpecManager().kernel_dirs


def test_a_server_in_another_program_leaves_its_garbage_collector_alone() -> None:
    import kernelmcp.server

    assert gc.isenabled()
    assert kernelmcp.server.create_server()._on_ready is None


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with the number of a user whom it does not know."""

    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_DATA_HOME", "KERNELMCP_HOME", "KERNELMCP_SERVER__HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("home", [None, "~", "~/kernels"])
def test_a_user_without_a_home_is_told_to_name_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: str | None
) -> None:
    if home is not None:
        monkeypatch.setenv("KERNELMCP_HOME", home)
    with pytest.raises(ConfigurationError, match="no home directory"):  # inside another program
        load().home  # noqa: B018
    assert cli.main(["doctor"]) == cli.EXIT_CONFIGURATION
    assert "Set KERNELMCP_HOME" in capsys.readouterr().err


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_has_the_one_of_a_named_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    (tmp_path / "mcp.toml").write_text(f"server.home = {json.dumps(str(tmp_path / 'home'))}")
    assert load(tmp_path / "mcp.toml").home == tmp_path / "home"
    (tmp_path / "mcp.toml").write_text("server.hom = 1")
    assert cli.main(["doctor", "--config", str(tmp_path / "mcp.toml")]) == cli.EXIT_CONFIGURATION
    assert "server.hom: there is no such setting" in capsys.readouterr().err


def test_the_home_of_a_user_who_is_not_there_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELMCP_HOME", "~bob_not_here/x")
    with pytest.raises(ConfigurationError, match=r"^KERNELMCP_HOME: ~bob_not_here/x: there is no user 'bob_not_here'"):
        load().home  # noqa: B018


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_has_volumes_and_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cli.main(["doctor"]) == cli.EXIT_CONFIGURATION
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    (tmp_path / "shared").mkdir()
    check_volumes(load(overrides={"volumes": {"shared": {"path": str(tmp_path / "shared"), "mode": "rw"}}}))
    assert Kernelspecs().kernel_dirs
