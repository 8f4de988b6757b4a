"""What a guest process is left with, seen from outside. What it can reach is attacked in tests/attacks."""

import gc
import os
import sys
import tempfile
from pathlib import Path

import pytest

from kernelmcp_kernel import languages
from kernelmcp_kernel.languages.python.image import plain_image
from kernelmcp_kernel.runtime import guest_process
from kernelmcp_kernel.runtime.build_identity import node_binary
from kernelmcp_kernel.runtime.directory import PrivateDirectory, SandboxDirectory
from kernelmcp_kernel.runtime.guest_process import give_to_guest, spawn_guest
from kernelmcp_kernel.sandbox import cgroup
from kernelmcp_kernel.sandbox.confined_process import Policy
from kernelmcp_kernel.sandbox.elf import linked_files
from kernelmcp_kernel.settings import KernelSettings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the operating system's layers are Linux's")


def test_a_user_who_cannot_get_there_is_refused_in_words(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    sandbox = SandboxDirectory(tmp_path / "sandbox")
    with pytest.raises(PermissionError, match=r"guest_uid cannot reach .*not accessible to others"):
        give_to_guest(sandbox, os.getuid() + 1, [str(plain_image().path), str(sandbox.path)])


def test_a_spawn_that_fails_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    def fail(policy: Policy) -> Policy:
        raise OSError("no more processes")

    sandbox = SandboxDirectory(tmp_path / "sandbox")
    launch = languages.main_language().launch(sandbox)
    gc.collect()  # what earlier tests left closes now, not between the two lists
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="no more processes"):
        spawn_guest(sandbox, launch, fail)
    assert os.listdir("/proc/self/fd") == before


def test_a_sweep_leaves_the_directories_of_living_kernels_and_takes_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living, ended, killed = PrivateDirectory(), PrivateDirectory(), PrivateDirectory()
    ended.close()
    os.close(killed._lock)  # what the end of its process does
    another = PrivateDirectory()
    assert sorted(path.name for path in another.path.parent.glob("sandbox-*[!k]")) == sorted(
        [living.path.name, another.path.name]
    )
    living.close()
    another.close()
    assert list(another.path.parent.iterdir()) == []


def test_a_control_group_is_used_only_where_it_is_delegated(tmp_path: Path) -> None:
    """On a stand-in for /sys/fs/cgroup: no test machine delegates the real one."""
    unit = tmp_path / "system.slice" / "kernelmcp.service"
    (unit / "server").mkdir(parents=True)
    membership = tmp_path / "membership"
    membership.write_text("1:name=systemd:/\n0::/system.slice/kernelmcp.service/server\n")
    (unit / "cgroup.controllers").write_text("cpu memory pids\n")
    (unit / "cgroup.subtree_control").write_text("")
    assert cgroup.delegated(tmp_path, membership) is None
    try:
        os.setxattr(unit, "user.delegate", b"1")
    except OSError:
        pytest.skip("this file system has no such attributes")
    assert cgroup.delegated(tmp_path, membership) == unit
    assert (unit / "cgroup.subtree_control").read_text() == "+memory +pids"
    group = cgroup.confine(unit, 4711, 100)
    assert group is not None
    assert {file.name: file.read_text() for file in group.path.iterdir()} == {
        "memory.max": str(100 << 20),
        "pids.max": "64",
        "cgroup.procs": "4711",
    }
    assert not group.ran_out_of_memory()
    (group.path / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n")
    assert group.ran_out_of_memory()


def test_a_control_group_of_a_process_that_lives_stays_though_it_is_empty(tmp_path: Path) -> None:
    """Another kernel has just made it, for a guest that is not in it yet."""
    (living := tmp_path / f"kernelmcp-guest-{os.getpid()}").mkdir()
    (ended := tmp_path / f"kernelmcp-guest-{2**30}").mkdir()
    (reused := tmp_path / "kernelmcp-guest-1").mkdir()
    group = cgroup.confine(tmp_path, 1, 100)
    assert group is not None
    assert group.path == reused
    assert (living.exists(), ended.exists()) == (True, False)


def test_no_guest_runs_without_a_control_group_that_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(guest_process, "settings", lambda: KernelSettings(required_layers=("cgroup",)))
    monkeypatch.setattr(guest_process, "delegated", lambda: tmp_path / "missing")
    monkeypatch.setattr(guest_process, "_spawn", lambda *_: 4711)
    monkeypatch.setattr(os, "kill", lambda pid, _: ended.append(pid))
    monkeypatch.setattr(os, "waitpid", lambda pid, _: ended.append(pid))
    sandbox = SandboxDirectory(tmp_path / "sandbox")
    launch = languages.main_language().launch(sandbox)
    gc.collect()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="control group that required_layers asks for"):
        spawn_guest(sandbox, launch)
    assert (os.listdir("/proc/self/fd"), ended) == (before, [4711, 4711])


def test_what_node_is_linked_against_is_found_without_running_it() -> None:
    names = {os.path.basename(path) for path in linked_files(node_binary())}
    assert any(name.startswith("ld-") for name in names), names
    assert linked_files(Path(__file__)) == []
