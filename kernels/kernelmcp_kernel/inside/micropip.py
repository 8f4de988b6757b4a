"""micropip for code written for Pyodide: the same functions, done by the kernel process (see
kernelmcp_guest.packages)."""

import json
from typing import Any

from kernelmcp_guest import packages
from kernelmcp_guest.bridge import bridge, request_id
from kernelmcp_guest.packages import pip_commands

__all__ = ["freeze", "install", "list", "uninstall"]


async def install(
    requirements: str | list[str],
    keep_going: bool = False,
    deps: bool = True,
    credentials: str | None = None,
    pre: bool = False,
    index_urls: list[str] | str | None = None,
    *,
    constraints: list[str] | None = None,
    reinstall: bool = False,
    verbose: bool | int | None = None,
) -> None:
    """Install packages by name. Raises kernelmcp_guest.packages.PackageError."""
    if index_urls or constraints or reinstall:
        raise packages.PackageError(
            "index_urls, constraints and reinstall are not available in the sandbox: name a version instead"
        )
    wanted = [requirements] if isinstance(requirements, str) else requirements
    call = json.dumps({"call": "install", "requirements": wanted, "pre": pre, "no_deps": not deps})
    packages.check(json.loads(await bridge.ask(request_id.get(), call)))


def uninstall(packages_: str | list[str], *, verbose: bool | int = False) -> None:
    """Not available: raises an error with an alternative."""
    pip_commands.pip("uninstall")


def list() -> dict[str, Any]:  # noqa: A001  # micropip's own name for it
    """Names and versions of installed packages."""
    return dict(packages.installed())


def freeze() -> str:
    """The installed packages, as JSON."""
    return json.dumps({"packages": dict(packages.installed())})
