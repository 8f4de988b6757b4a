"""Decides which isolation layers hold, from the results of the attempts and the operating system's data.

Must not know how the attempts are made, nor how a report is printed.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmcp.commands.doctor_process import foreign_variables, landlock_abi, process_status


@dataclass(frozen=True)
class Attempt:
    """`contained` is None if it could not be tried."""

    name: str
    title: str
    contained: bool | None
    detail: str


@dataclass(frozen=True)
class Layer:
    """`active`: it is in place. `proven`: an attempt failed that only this layer, or this layer first, could refuse."""

    name: str
    active: bool
    proven: bool
    detail: str


def judge(facts: dict[str, Any], control: dict[str, Any], attempts: list[Attempt], guest_pid: int) -> list[Layer]:
    """The layers, from the findings inside and the operating system's data on the process."""
    outcome = {attempt.name: attempt.contained for attempt in attempts}
    status = process_status(guest_pid)
    return [
        _wasm(facts, outcome),
        _node_permission(facts, control, outcome),
        _no_new_privs(status),
        _empty_environment(outcome, guest_pid),
        _closed_descriptors(outcome),
        _landlock(attempts),
        _seccomp(status, outcome),
        _seatbelt(outcome),
        _cgroup(guest_pid),
    ]


def _held(outcome: dict[str, bool | None], *names: str) -> bool:
    return all(outcome.get(name) is True for name in names)


def _wasm(facts: dict[str, Any], outcome: dict[str, bool | None]) -> Layer:
    active = facts.get("platform") == "emscripten"
    proven = active and _held(outcome, "python_file", "python_write", "python_process", "python_socket")
    detail = f"Python runs on {facts.get('platform', 'an unknown platform')}"
    if active:
        reach = "reaches no file, process or socket of the host" if proven else "still reaches the host"
        detail = f"Python runs in WebAssembly ({facts.get('machine')}) and {reach}"
    return Layer("wasm", active, proven, detail)


def _node_permission(facts: dict[str, Any], control: dict[str, Any], outcome: dict[str, bool | None]) -> Layer:
    active = facts.get("permission") is True
    refused = _held(outcome, "javascript_file", "nodefs_mount", "javascript_write", "javascript_process")
    proven = active and refused and control["breached"] is True
    if not active:
        return Layer("node-permission", False, False, "Node's permission model is not on")
    detail = "JavaScript reads and writes its workspace, no other file, and starts no process"
    if not proven:
        detail = f"on, but the attempts below say otherwise (control: {control['detail']})"
    return Layer("node-permission", True, proven, detail)


def _no_new_privs(status: dict[str, str]) -> Layer:
    value = status.get("NoNewPrivs")
    if value is None:
        return Layer("no_new_privs", False, False, "this platform does not have it")
    return Layer("no_new_privs", value == "1", value == "1", f"the kernel's record of the process: NoNewPrivs {value}")


def _empty_environment(outcome: dict[str, bool | None], guest_pid: int) -> Layer:
    count = foreign_variables(guest_pid)
    refused = outcome.get("environment") is True
    active = refused and count in (0, None)
    seen = "the process has no variables of ours" if count == 0 else f"the process has {count} variables of ours"
    if outcome.get("environment") is None:
        return Layer("empty-environment", False, False, "could not be tried")
    detail = "the canary is not visible" if refused else "a variable of the host is visible"
    return Layer("empty-environment", active, refused, detail if count is None else f"{detail}; {seen}")


def _closed_descriptors(outcome: dict[str, bool | None]) -> Layer:
    if outcome.get("descriptors") is None:
        return Layer("closed-descriptors", False, False, "could not be tried")
    held = outcome.get("descriptors") is True
    detail = "pipes, events and /dev/null only" if held else "the process holds files or sockets of the host"
    return Layer("closed-descriptors", held, held, detail)


def _landlock(attempts: list[Attempt]) -> Layer:
    abi = landlock_abi()
    offered = f"this machine offers ABI {abi}" if abi else "this machine does not offer it"
    # Node's own error is ERR_ACCESS_DENIED, and we own the file: so EACCES comes from Landlock.
    if abi and any(one.name == "link" and one.contained and "EACCES" in one.detail for one in attempts):
        return Layer("landlock", True, True, "the operating system refuses to follow a link out of the workspace")
    return Layer("landlock", False, False, f"not active ({offered})")


def _seccomp(status: dict[str, str], outcome: dict[str, bool | None]) -> Layer:
    own = process_status(os.getpid())
    # A container's filter applies to every process: ours must be an additional one.
    filters, ours = int(status.get("Seccomp_filters", 0)), int(own.get("Seccomp_filters", 0))
    active = status.get("Seccomp") == "2" and filters > ours
    if active:
        refused = _held(outcome, "javascript_socket", "signal")
        return Layer(
            "seccomp",
            True,
            refused,
            "no sockets, no signals" if refused else "a filter that lets the attempts through",
        )
    found = (
        f"the kernel's record of the process: Seccomp {status.get('Seccomp', '?')}" if status else "not on this system"
    )
    return Layer("seccomp", False, False, f"not active ({found})")


def _seatbelt(outcome: dict[str, bool | None]) -> Layer:
    if sys.platform != "darwin":
        return Layer("seatbelt", False, False, "macOS only")
    refused = _held(outcome, "link", "javascript_socket", "signal")
    return Layer("seatbelt", refused, refused, "macOS refuses" if refused else "macOS lets the attempts through")


def _cgroup(guest_pid: int) -> Layer:
    """The layer of the process's control group, which must have been created for it."""
    try:
        groups = Path(f"/proc/{guest_pid}/cgroup").read_text("utf-8")
    except OSError:
        groups = ""
    if f"kernelmcp-guest-{guest_pid}" not in groups:
        return Layer(
            "cgroup", False, False, "no control groups are delegated to us (systemd: Delegate=, DelegateSubgroup=)"
        )
    return Layer("cgroup", True, True, "the process is in a control group of its own, with limits of memory and tasks")
