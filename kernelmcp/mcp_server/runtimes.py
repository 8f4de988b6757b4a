"""The languages a session can run."""

from typing import Any

from kernelmcp.config.settings import Settings
from kernelmcp.kernel.process import find_kernelspec
from kernelmcp.mcp_server.schemas import RuntimeInfo

NOT_YET = "not available in this version"


def runtimes(settings: Settings) -> list[RuntimeInfo]:
    spec = find_kernelspec(settings.config.kernels.kernelspec)
    return [
        {
            "name": "python",
            "version": _version(spec),
            "description": (spec or {}).get("display_name") or "no such kernelspec is installed",
            "available": spec is not None,
        },
        {"name": "javascript", "version": None, "description": NOT_YET, "available": False},
        {"name": "shell", "version": None, "description": NOT_YET, "available": False},
    ]


def _version(spec: dict[str, Any] | None) -> str | None:
    metadata: dict[str, Any] = (spec or {}).get("metadata") or {}
    version = metadata.get("language_version")
    return version if isinstance(version, str) else None
