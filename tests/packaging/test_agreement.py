"""What the server and the kernel process both know, written down in each because neither imports the other.

Hosts have such a test in tests/server/test_network.py.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args

import pytest

from kernelmcp.commands import doctor_attempts
from kernelmcp.config.guests import NetworkSection, PackagesSection
from kernelmcp.config.models import Config, Values
from kernelmcp.config.policy import LayerName, Policy
from kernelmcp.config.settings import Settings
from kernelmcp.executions.beginning import ANOTHER_BUILD
from kernelmcp.files import home, safe_open, workspace
from kernelmcp.kernel.environment import kernel_environment
from kernelmcp.kernel.for_jupyter import jupyter_environment
from kernelmcp.output.sanitize import REPORT, is_readable
from kernelmcp.pictures.decoder_process import confine as decoder
from kernelmcp.sessions import installed_packages as server_packages
from kernelmcp_kernel import settings as kernel_settings
from kernelmcp_kernel.guests.storage import count
from kernelmcp_kernel.jupyter import execute_messages, iopub
from kernelmcp_kernel.jupyter.tools.tool_messages import MAX_ARGUMENTS_BYTES, checked_tool_calls
from kernelmcp_kernel.languages import interface
from kernelmcp_kernel.packages import distribution, package_errors, requirements
from kernelmcp_kernel.packages.empty_wheels import Present
from kernelmcp_kernel.packages.outcome import Outcome, Package
from kernelmcp_kernel.packages.store import SOURCES, Wheel
from kernelmcp_kernel.runtime import directory, places
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.sandbox import landlock, probe, seccomp

# Each deletes a session's directory: the one a private one of the kernel's, the other one of the server's.
DELETE: dict[str, Callable[[Path], None]] = {
    "kernel process": vars(directory)["_delete"],
    "server": safe_open.delete_tree,
    "server, for good": safe_open.delete_for_good,
}


def test_the_kernelspec_counts_what_an_import_installs() -> None:
    spec = json.loads((places.PACKAGE / "kernelspec" / "kernel.json").read_text())
    python, *_ = spec["metadata"]["kernelmcp"]["languages"]
    assert python["importable_packages"] == len(distribution.importable(kernel_settings.PackageSettings()))


def test_the_server_knows_the_kernel_processs_reports() -> None:
    assert REPORT == iopub.REPORT
    assert ANOTHER_BUILD == interface.ANOTHER_BUILD


def test_both_find_the_same_version_of_landlock() -> None:
    assert doctor_attempts.landlock_abi() == landlock.available()


def test_the_picture_decoder_numbers_system_calls_as_the_guests_filter_does() -> None:
    ours = vars(seccomp)["_MACHINES"]
    theirs = vars(decoder)["_CALLS"]
    assert set(theirs) == set(ours)
    for machine, (architecture, numbers) in theirs.items():
        known, known_architecture, _ = ours[machine]
        assert architecture == known_architecture
        assert numbers == {name: known[name] for name in numbers}


def test_filters_are_written_with_the_same_constants() -> None:
    names = ["_ALLOW", "_KILL_PROCESS", "_ERRNO", "_LOAD", "_JUMP_EQUAL", "_RETURN", "_NUMBER", "_ARCHITECTURE"]
    assert [vars(decoder)[name] for name in names] == [vars(seccomp)[name] for name in names]


def test_every_layer_that_may_be_required_is_one_that_the_probe_tries() -> None:
    tried = {*vars(probe)["_TRIALS"], *probe.ALWAYS}
    assert set(get_args(LayerName)) == tried


def test_what_the_server_sets_for_a_kernel_is_what_the_kernel_reads(tmp_path: Path) -> None:
    policy = Policy(workspace_max_mb=77, max_files=88, cpu_seconds=9.5, background_cpu_seconds=11.5, env={"A": "b"})
    given = {"server": {"home": str(tmp_path)}, "shell": {"commands": {"rm *": "ask"}}}
    settings = Settings(Values(config=Config.model_validate(given), policy=policy))
    environment = kernel_environment(settings, home.SandboxDirectory(tmp_path / "sandbox"), "small")
    read = kernel_settings.read_settings(environment)
    assert read.sandbox == tmp_path / "sandbox"
    assert read.quota == kernel_settings.Quota(77 << 20, 88)
    assert (read.cpu_seconds, read.background_cpu_seconds, read.env) == (9.5, 11.5, {"A": "b"})
    assert read.ask_commands
    for_jupyter = kernel_settings.read_settings(jupyter_environment(settings, tmp_path))
    assert not for_jupyter.ask_commands, "nobody would answer"
    assert read.memory_mb == policy.flavors["small"].memory_mb
    unread = {name for name in environment if name.startswith("KERNELMCP_")} - kernel_settings.VARIABLES
    assert unread <= {"KERNELMCP_HOME"}


def test_the_files_of_offered_tools_are_deleted_with_a_sandbox_directory(tmp_path: Path) -> None:
    ours = home.SandboxDirectory(tmp_path / "sandbox")
    kernels = SandboxDirectory(tmp_path / "sandbox")
    assert kernels.offered == ours.offered
    (kernels.offered / "crm").mkdir()
    (kernels.offered / "crm" / "get.py").write_text("")
    ours.delete()
    assert list(tmp_path.iterdir()) == []


def test_a_server_reads_every_call_that_a_kernel_process_passes_on() -> None:
    largest: list[dict[str, Any]] = [
        {"a": "x" * (MAX_ARGUMENTS_BYTES - 100)},
        {"a": [[]] * 179_000},
        {str(number): 1 for number in range(179_000)},
        {"a": [1] * 890_000},
    ]
    for arguments in largest:
        [asked], _ = checked_tool_calls({"calls": [[1, "crm", "get", arguments]]})
        assert asked.problem is None
        assert is_readable(json.dumps({"calls": [{"id": 1, "arguments": arguments}]}).encode())


def test_defaults_are_the_same_on_both_sides() -> None:
    policy, ours = Policy(), kernel_settings.KernelSettings()
    assert (ours.workspace_mb, ours.max_files) == (policy.workspace_max_mb, policy.max_files)
    assert ours.background_cpu_seconds == policy.background_cpu_seconds
    for section, settings in (
        (PackagesSection(), kernel_settings.PackageSettings()),
        (NetworkSection(), kernel_settings.NetworkSettings()),
    ):
        assert asdict(settings) == {field.name: getattr(section, field.name) for field in fields(settings)}


def test_the_limits_in_a_request_are_read_under_the_names_they_are_sent_by() -> None:
    source = Path(str(sys.modules["kernelmcp.sessions"].__path__[0]), "queue.py").read_text("utf-8")
    for name in ("cpu_seconds", "workspace_bytes", "max_files"):
        assert f'"{name}":' in source, name
    metadata = {"kernelmcp": {"cpu_seconds": 3, "workspace_bytes": 5, "max_files": 7}}
    assert execute_messages.cpu_seconds(metadata) == 3
    assert execute_messages.quota(metadata) == kernel_settings.Quota(5, 7)


def test_the_server_understands_what_a_kernel_says_of_an_installation() -> None:
    wheels = [Wheel(f"n{number}", "1.0+pure", "", "", source) for number, source in enumerate(SOURCES)]
    new = [Package(wheel, Path()) for wheel in wheels]
    said = Outcome(new, [Present("alpha", "1.0")], ("x" * 1000, "a\x1b[31m\nb", *["n"] * 1000)).as_json()
    assert server_packages.PACKAGES_TYPE == iopub.PACKAGES_TYPE
    assert server_packages.MAX_AT_ONCE == requirements.MAX_REQUIREMENTS
    assert package_errors.PackagesDisabled.__name__ in server_packages.OF_ALL
    assert server_packages.installation({iopub.PACKAGES_TYPE: said}) == server_packages.Installation(
        installed=[
            server_packages.Package(name=each.name, version=each.version, source=each.source) for each in wheels
        ],
        already_present=[server_packages.Package(name="alpha", version="1.0")],
        notes=["x" * server_packages.MAX_NOTE_CHARS, "a [31m b", *["n"] * (server_packages.MAX_NOTES - 2)],
    )
    for hostile in ("a\nb", "\x1b[2J", "x" * 1000):  # of a kernel that is not ours
        assert server_packages.installation({iopub.PACKAGES_TYPE: {"notes": [hostile]}}) is None


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    """A sandbox directory with every kind of file that one can hold."""
    sandbox = tmp_path / "sandbox"
    deep = sandbox / "workspace" / "a" / "b"
    deep.mkdir(parents=True)
    (sandbox / "tmp" / "empty").mkdir(parents=True)
    (deep / "file").write_bytes(bytes(5000))
    (sandbox / "tmp" / "other").write_bytes(bytes(300))
    os.link(deep / "file", deep / "hard")
    (sandbox / "workspace" / "link").symlink_to(deep)
    with (sandbox / "workspace" / "sparse").open("wb") as file:
        file.truncate(100_000)
    return sandbox


def test_both_count_a_sessions_files_alike(sandbox: Path) -> None:
    """The kernel process counts the two directories themselves, too, and the lengths of links: within its slack."""
    counted = count(sandbox, kernel_settings.Quota(1 << 30, 1000))
    usage = workspace.Workspace(sandbox, workspace.Quota(1 << 30, 1000)).usage()
    assert counted.max_files == usage.entries + 2
    link = len(str(sandbox / "workspace" / "a" / "b"))
    assert counted.max_bytes - usage.total_bytes in (0, link)


def _nest(folder: Path, levels: int) -> None:
    """Deeper than a path can say."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)


@pytest.mark.parametrize("who", DELETE)
def test_both_delete_what_a_hostile_guest_leaves_and_nothing_else(sandbox: Path, who: str) -> None:
    outside = sandbox.parent / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (sandbox / "workspace" / "out").symlink_to(outside)
    _nest(sandbox / "workspace" / "a", 5000)
    (sandbox / "workspace" / "closed" / "inner").mkdir(parents=True)
    (sandbox / "workspace" / "closed").chmod(0)
    (sandbox / "workspace").chmod(0o300)  # written, but not read
    DELETE[who](sandbox)
    assert not sandbox.exists()
    assert (outside / "kept").read_text() == "kept"
