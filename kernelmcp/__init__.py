"""kernelmcp: an MCP server that gives a language model a sandboxed Jupyter kernel of its own.

For programs that embed it: `from kernelmcp import create_server, Settings` (docs/embedding.md).
"""

from typing import TYPE_CHECKING, Any

from kernelmcp.version import __version__

if TYPE_CHECKING:
    from kernelmcp.config.load import load as load_settings
    from kernelmcp.config.settings import Settings as Settings
    from kernelmcp.server import Server as Server
    from kernelmcp.server import create_server as create_server

__all__ = ["Server", "Settings", "__version__", "create_server", "load_settings"]

_PLACES = {
    "Server": ("kernelmcp.server", "Server"),
    "Settings": ("kernelmcp.config.settings", "Settings"),
    "create_server": ("kernelmcp.server", "create_server"),
    "load_settings": ("kernelmcp.config.load", "load"),
}


def __getattr__(name: str) -> Any:
    """Import on demand: the command line must not load modules that it does not need."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, attribute = _PLACES[name]
    return getattr(importlib.import_module(module), attribute)
