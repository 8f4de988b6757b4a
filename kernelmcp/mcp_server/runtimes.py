"""The languages a session can run: the rows in the metadata of the configured kernelspec."""

from typing import Any

from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument
from kernelmcp.kernel.process import find_kernelspec
from kernelmcp.mcp_server.schemas import RuntimeInfo

# The language of cells without a magic, and all that a kernelspec of somebody else's offers.
MAIN = "python"
CONTRACT_NAMES = (MAIN, "javascript", "shell")
NOT_YET = "not available in this version"


def runtimes(settings: Settings) -> list[RuntimeInfo]:
    """What list_runtimes shows: the rows, and what the contract names beside them."""
    spec = find_kernelspec(settings.config.kernels.kernelspec)
    if spec is None:
        missing = "no such kernelspec is installed"
        found: list[RuntimeInfo] = [{"name": MAIN, "version": None, "description": missing, "available": False}]
    else:
        found = [
            {
                "name": row["name"],
                "version": row.get("version"),
                "description": row["description"],
                "available": True,
            }
            for row in _rows(spec)
        ]
    names = {runtime["name"] for runtime in found}
    return found + [
        {"name": name, "version": None, "description": NOT_YET, "available": False}
        for name in CONTRACT_NAMES
        if name not in names
    ]


def languages(settings: Settings) -> list[str]:
    """Their names, as `language` takes them."""
    spec = find_kernelspec(settings.config.kernels.kernelspec)
    return [row["name"] for row in _rows(spec)] if spec else [MAIN]


def check_language(settings: Settings, language: str | None) -> None:
    """Raises InvalidArgument for one that cannot be run. None is whatever the session's is."""
    if language not in (None, MAIN) and language not in (names := languages(settings)):
        raise InvalidArgument(
            f"language {language!r} is not available in this version of kernelmcp",
            f"Use language {' or '.join(map(repr, names))}.".replace("'", '"'),
            argument="language",
        )


def as_cell(settings: Settings, language: str, code: str) -> str:
    """Code as a cell of the kernel: in any language but the main one it begins with that language's magic, so that it
    means the same in a notebook. Raises InvalidArgument."""
    check_language(settings, language)
    if language == MAIN:
        return code
    spec = find_kernelspec(settings.config.kernels.kernelspec) or {}
    magic = next(row["magics"][0] for row in _rows(spec) if row["name"] == language)
    return f"%%{magic}\n{code}"


def _rows(spec: dict[str, Any]) -> list[dict[str, Any]]:
    metadata: dict[str, Any] = spec.get("metadata") or {}
    rows: list[dict[str, Any]] | None = metadata.get("languages")
    return rows or [{"name": MAIN, "version": None, "description": spec["display_name"], "magics": []}]
