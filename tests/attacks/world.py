"""What lies outside of an attacker's reach, watched from outside: canaries, listeners, a victim, a folder.

An attack has breached when something here says so: a secret in what the attacker answers, bytes at a listener, a signal
at the victim, a changed folder, a child process, a link or device in the workspace.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.settings import settings

from ..processes import descendants, forget_peak, peak_mb

# Of the disk, beyond the quota: what is written before it is counted.
DISK_SLACK_MB = 64
# Of a trusted process, which has 40 MB: it is never larger than 400.
MAX_GROWTH_MB = 350

CANARY_VARIABLE = "KERNELMCP_ATTACK_CANARY"

VICTIM = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.write(1, b".")
while True: signal.sigwaitinfo([signal.SIGRTMAX])
"""


@dataclass
class World:
    """One attacker's surroundings."""

    sandbox: SandboxDirectory
    outside: Path
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    victim: subprocess.Popen[bytes] | None = None
    ports: dict[str, int] = field(default_factory=dict[str, int])
    arrived: list[str] = field(default_factory=list[str])
    descriptor: int = -1
    trusted: int = 0
    """The kernel process; 0: the tests' own stands in its place."""

    @property
    def secret(self) -> Path:
        return self.outside / "secret.txt"

    @property
    def offered(self) -> Path:
        """A file of tools that are offered, which may be read."""
        return self.sandbox.offered / "index.json"

    @property
    def abstract(self) -> str:
        return f"kernelmcp-attack-{self.token[:8]}"

    def targets(self) -> dict[str, Any]:
        """What an attacker knows. Of the secret only that it begins with `canary-`."""
        assert self.victim is not None
        return {
            "secret": str(self.secret),
            "outside": str(self.outside),
            "workspace": str(self.sandbox.workspace),
            "above": str(self.sandbox.path),
            "offered": str(self.sandbox.offered),
            "victim": self.victim.pid,
            "parent": os.getpid(),
            "group": os.getpgrp(),
            "ports": self.ports,
            "unix": str(self.outside / "s"),
            "unix_inside": str(self.sandbox.workspace / "host.sock"),
            "abstract": self.abstract,
            "variable": CANARY_VARIABLE,
        }

    def reset(self) -> None:
        """Everything as at the beginning."""
        self.arrived.clear()
        sealed = stat.S_IMODE(self.sandbox.path.stat().st_mode)
        self.sandbox.path.chmod(0o700)
        for entry in self._beside():
            entry.unlink()
        self.sandbox.path.chmod(sealed)
        for entry in (*self.outside.iterdir(), *self.sandbox.workspace.iterdir(), *self.sandbox.tmp.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif not entry.is_socket() or entry.name not in ("s", "host.sock"):
                entry.unlink()
        self.outside.chmod(0o700)
        self.secret.write_text(f"canary-{self.token}")
        self.secret.chmod(0o600)
        for entry in self.sandbox.offered.iterdir():
            entry.unlink()
        self.offered.write_text("offered")
        self.offered.chmod(0o644)
        os.utime(self.secret, (1_000_000_000, 1_000_000_000))
        (self.sandbox.workspace / "link-of-the-host").symlink_to(self.secret)
        if self.victim is not None and (self.victim.poll() is not None or _pending_signals(self.victim.pid)):
            self.victim.kill()
            self.victim.wait()
            self.victim = None
        if self.victim is None:
            self.victim = subprocess.Popen([sys.executable, "-I", "-S", "-c", VICTIM], stdout=subprocess.PIPE)
            assert self.victim.stdout is not None
            self.victim.stdout.read(1)
        self._before = self._folder()
        self.begin()

    def _beside(self) -> list[Path]:
        """What there is beside the two directories that a guest may write."""
        return [
            entry for entry in self.sandbox.path.iterdir() if entry not in (self.sandbox.workspace, self.sandbox.tmp)
        ]

    def _put_back(self) -> None:
        """The workspace, by which the listeners are reached, where it was."""
        if not self.sandbox.workspace.exists():
            mode = stat.S_IMODE(self.sandbox.path.stat().st_mode)
            self.sandbox.path.chmod(0o700)
            os.rename(self.sandbox.path / "elsewhere", self.sandbox.workspace)
            self.sandbox.path.chmod(mode)

    def _folder(self) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for entry in sorted((*self.outside.iterdir(), *self.sandbox.offered.iterdir())):
            status = entry.lstat()
            content = entry.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            attributes = tuple(os.listxattr(entry)) if hasattr(os, "listxattr") else ()
            found.append(
                (entry.name, status.st_mode, status.st_uid, status.st_mtime, status.st_nlink, content, attributes)
            )
        return found

    async def evidence(self, answer: str, pid: int) -> list[str]:
        """What an attack by process `pid` has done to the outside."""
        assert self.victim is not None
        found: list[str] = []
        if self._beside():
            found.append("it changed the folder above its workspace")
            self._put_back()
        await self._drain()
        if self.token in answer:
            found.append("it read a secret")
        if self.arrived:
            found.append(f"a listener heard it: {', '.join(sorted(set(self.arrived)))}")
        if self.victim.poll() is not None or _pending_signals(self.victim.pid):
            found.append("another process got its signal")
        if self._folder() != self._before:
            found.append("it changed what lies outside")
        if _listens(pid):
            found.append("it listens on a port")
        if children := descendants(pid):
            found.append("it has a child process")
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        found += self._beyond_bounds(pid)
        found += [f"it made a {kind} in its workspace" for kind in self._special_files()]
        found += [f"it made a file of {size >> 30} GB" for size in self._sizes() if size > 5 << 30]
        return found

    def _beyond_bounds(self, pid: int) -> list[str]:
        """What the attack cost the host: disk, memory of the process that stands for the kernel's, sockets."""
        found: list[str] = []
        disk = disk_bytes(self.sandbox.path, [pid])
        if disk > (settings().workspace_mb + DISK_SLACK_MB) << 20:
            found.append(f"it took {disk >> 20:,} MB of the disk")
        trusted = self.trusted or os.getpid()
        if (peak := peak_mb(trusted)) > self._base_mb + MAX_GROWTH_MB:
            found.append(f"the process above it grew to {peak:,.0f} MB")
        if sockets := _sockets(pid):
            found.append(f"it has sockets: {sockets}")
        if self.trusted and (sockets := _sockets(self.trusted, "inet")):
            found.append(f"the process above it has connections: {sockets}")
        return found

    def begin(self) -> None:
        """Let the peak of the process above begin at what it has now."""
        trusted = self.trusted or os.getpid()
        forget_peak(trusted)
        self._base_mb = peak_mb(trusted)

    def _files(self) -> list[Path]:
        found = [Path(folder, name) for folder, _, names in os.walk(self.sandbox.path) for name in names]
        found += [Path(folder, name) for folder, names, _ in os.walk(self.sandbox.path) for name in names]
        return [file for file in found if file.name not in ("link-of-the-host", "host.sock")]

    def _special_files(self) -> list[str]:
        kinds: set[str] = set()
        for file in self._files():
            status = file.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                kinds.add("hard link")
            elif not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                kinds.add(
                    {stat.S_IFLNK: "link", stat.S_IFIFO: "pipe"}.get(stat.S_IFMT(status.st_mode), "device or socket")
                )
        return sorted(kinds)

    def _sizes(self) -> list[int]:
        return [file.lstat().st_size for file in self._files()]

    async def _drain(self) -> None:
        """Once our own bytes have come in at a listener, whatever was sent to it before has, too."""
        loop = asyncio.get_running_loop()
        mark = f"mark-{secrets.token_hex(4)}"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.sendto(mark.encode(), ("127.0.0.1", self.ports["udp4"]))
        addresses: list[tuple[int, Any]] = [
            (socket.AF_INET, ("127.0.0.1", self.ports["tcp4"])),
            (socket.AF_UNIX, str(self.outside / "s")),
            (socket.AF_UNIX, str(self.sandbox.workspace / "host.sock")),
        ]
        if "tcp6" in self.ports:
            addresses.append((socket.AF_INET6, ("::1", self.ports["tcp6"])))
        if "abstract" in self.ports:
            addresses.append((socket.AF_UNIX, f"\0{self.abstract}"))
        for family, address in addresses:
            with socket.socket(family) as own:
                own.setblocking(False)
                await loop.sock_connect(own, address)
                await loop.sock_sendall(own, mark.encode())
        async with asyncio.timeout(30):
            while sum(mark in heard for heard in self.arrived) < len(addresses) + 1:  # noqa: ASYNC110
                await asyncio.sleep(0.001)  # our own callbacks hear it
        self.arrived[:] = [heard for heard in self.arrived if "mark-" not in heard]


def _pending_signals(pid: int) -> bool:
    """A signal that was sent is there to see, however busy the machine is: the victim blocks them all."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return False
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return any(int(fields[name], 16) for name in ("SigPnd", "ShdPnd"))


def disk_bytes(folder: Path, pids: list[int]) -> int:
    """Blocks of all files below a folder, and of the deleted ones that processes have open, in bytes. Links are not
    followed."""
    found: dict[tuple[int, int], int] = {}
    waiting = [str(folder)]
    while waiting:
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found[status.st_dev, status.st_ino] = status.st_blocks * 512
                    waiting += [entry.path] if entry.is_dir(follow_symlinks=False) else []
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{name}")
                    if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                        found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def _sockets(pid: int, kind: str = "all") -> list[str]:
    try:
        return [f"{one.type.name} {one.status}" for one in psutil.Process(pid).net_connections(kind)]
    except psutil.Error:
        return []


def _listens(pid: int) -> bool:
    try:
        return any(one.status == psutil.CONN_LISTEN for one in psutil.Process(pid).net_connections("inet"))
    except psutil.Error:
        return False


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, world: World) -> None:
        self._world = world

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._world.arrived.append(f"udp4 {data[:40]!r}")


@asynccontextmanager
async def surroundings(folder: Path) -> AsyncIterator[World]:
    """A world with its listeners and its victim, under a folder with a short path."""
    outside = folder / "outside"
    outside.mkdir(mode=0o700)
    world = World(SandboxDirectory(folder / "sandbox"), outside)
    os.environ[CANARY_VARIABLE] = f"canary-{world.token}"

    def hears(name: str) -> Any:
        async def heard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            data = b""
            try:
                async with asyncio.timeout(5):
                    data = await reader.read(40)
            except (TimeoutError, OSError):
                pass
            world.arrived.append(f"{name} {data!r}")
            writer.close()

        return heard

    servers = [await asyncio.start_server(hears("tcp4"), "127.0.0.1", 0)]
    world.ports["tcp4"] = servers[0].sockets[0].getsockname()[1]
    if socket.has_ipv6:
        try:
            servers.append(await asyncio.start_server(hears("tcp6"), "::1", 0))
            world.ports["tcp6"] = servers[-1].sockets[0].getsockname()[1]
        except OSError:
            pass  # a machine without IPv6
    servers.append(await asyncio.start_unix_server(hears("unix"), str(outside / "s")))
    servers.append(await asyncio.start_unix_server(hears("unix inside"), str(world.sandbox.workspace / "host.sock")))
    if os.uname().sysname == "Linux":
        servers.append(await asyncio.start_unix_server(hears("abstract"), f"\0{world.abstract}"))
        world.ports["abstract"] = 1
    datagrams, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Datagrams(world), ("127.0.0.1", 0)
    )
    world.ports["udp4"] = datagrams.get_extra_info("sockname")[1]
    world.reset()
    # What a careless parent leaves open.
    world.descriptor = os.open(world.secret, os.O_RDONLY)
    os.set_inheritable(world.descriptor, True)
    try:
        yield world
    finally:
        del os.environ[CANARY_VARIABLE]
        os.close(world.descriptor)
        datagrams.close()
        for server in servers:
            server.close()
        if world.victim is not None:
            world.victim.kill()
            world.victim.wait()
