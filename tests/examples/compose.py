"""examples/compose.yaml and the Dockerfile that it builds, as what reads them sees them."""

from __future__ import annotations

import re
import shlex

import yaml

from .running import EXAMPLES, ROOT

TEXT = (EXAMPLES / "compose.yaml").read_text()
COMPOSE = yaml.safe_load(TEXT)
SERVICE = COMPOSE["services"]["kernelmcp"]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()


def substituted(value: str) -> str:
    """As compose does for `${NAME:-default}` where the variable is not set."""
    return re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value)


def image_environment() -> dict[str, str]:
    [line] = re.findall(r"^ENV (.*)$", DOCKERFILE, re.MULTILINE)
    return dict(one.split("=", 1) for one in shlex.split(line))


def mounts() -> dict[str, tuple[str, str]]:
    """Source and mode of each mount, by its path in the container."""
    parts = [one.split(":") for one in SERVICE["volumes"]]
    return {target: (source, mode[0] if mode else "rw") for source, target, *mode in parts}
