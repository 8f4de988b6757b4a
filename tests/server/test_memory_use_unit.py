"""How much memory is used: the machine's, or a control group's that is closer to its limit."""

from pathlib import Path

import psutil
import pytest

from kernelmcp.kernel.memory_use import MemoryUse, memory_use

GIB = 1 << 30
TOTAL = psutil.virtual_memory().total


def _group(folder: Path, limit: object, used: int, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\nactive_file 7\n")


def _use(tmp_path: Path, membership: str) -> MemoryUse:
    (tmp_path / "membership").write_text(membership)
    return memory_use(tmp_path / "mount", tmp_path / "membership")


def test_a_container_that_is_closer_to_its_limit_counts(tmp_path: Path) -> None:
    _group(tmp_path / "mount", GIB, GIB - 1000, cached=5000)
    assert _use(tmp_path, "0::/\n") == MemoryUse(GIB, GIB - 6000)


def test_a_group_above_the_servers_counts(tmp_path: Path) -> None:
    _group(tmp_path / "mount/pod", GIB, GIB - 1)
    _group(tmp_path / "mount/pod/container", "max", 5)
    assert _use(tmp_path, "0::/pod/container\n") == MemoryUse(GIB, GIB - 1)


def test_a_container_finds_its_own_group_though_the_path_is_the_machines(tmp_path: Path) -> None:
    _group(tmp_path / "mount", GIB, GIB)
    assert _use(tmp_path, "0::/kubepods/pod1/container1\n") == MemoryUse(GIB, GIB)


def test_groups_of_the_first_version(tmp_path: Path) -> None:
    folder = tmp_path / "mount/memory/docker/1"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{GIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{GIB}\n")
    (folder / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {GIB // 100}\n")
    assert _use(tmp_path, "9:name=systemd:/\n4:cpu,memory:/docker/1\n") == MemoryUse(GIB, GIB - GIB // 100)


@pytest.mark.parametrize(
    ("limit", "stat"),
    [
        ("max", "inactive_file 0"),
        ("0", "inactive_file 0"),
        ("damaged", "inactive_file 0"),
        (str(GIB), "nothing"),
        (str(GIB), ""),
        ("9" * 30, "inactive_file 0"),
    ],
)
def test_without_a_limit_that_can_be_read_the_machine_counts(tmp_path: Path, limit: str, stat: str) -> None:
    _group(tmp_path / "mount", limit, GIB)
    (tmp_path / "mount" / "memory.stat").write_text(stat)
    assert _use(tmp_path, "0::/\n").total == TOTAL


@pytest.mark.parametrize("membership", ["", "0::/gone\n", "4:memory:/gone\n"])
def test_without_a_group_the_machine_counts(tmp_path: Path, membership: str) -> None:
    use = _use(tmp_path, membership)
    assert use.total == TOTAL
    assert 0 < use.share < 1


def test_this_machines_can_be_read() -> None:
    assert 0 < memory_use().share <= 1
