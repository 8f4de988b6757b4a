"""Imports of `servers` and `skills`: `servers.NAME` is created from files in /servers; a tool's module is its function.

A user's own module `servers` is found if nothing is offered; the same holds for one called `skills`.
"""

import ast
import builtins
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from kernelmcp_guest.servers import results, search, servers_index, session_skills
from kernelmcp_guest.servers.by_name import call_mcp_tool
from kernelmcp_guest.servers.servers_index import NO_OFFER, ROOT

NAME = "servers"
SKILLS = "skills"
# Functions that `servers` has besides the servers.
OWN: dict[str, Any] = {
    **results.KINDS,
    "Blob": results.Blob,
    "Text": results.Text,
    "callMCPTool": call_mcp_tool,
    "search": search.search,
    "test_skills": session_skills.run_tests,
}


class Package(ModuleType):
    # `servers`, or `servers.NAME`. Its attributes are looked up at each access, so they are never outdated.

    @property
    def __doc__(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _documentation(self.__name__)

    def __getattr__(self, name: str) -> Any:
        package = self.__name__
        if name == "__all__":
            return dir(self)
        if package == NAME and name in OWN:
            return OWN[name]
        if package == NAME and name == SKILLS:
            return importlib.import_module(SKILLS)
        if name.startswith("__") or name not in _names(package):
            raise AttributeError(_missing(package, name), name=name)
        return importlib.import_module(f"{package}.{name}") if package == NAME else function(f"{package}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        full = f"{self.__name__}.{name}"
        if full not in sys.modules or sys.modules[full] is not value:
            super().__setattr__(name, value)
        elif not isinstance(value, Package):
            del sys.modules[full]  # an imported function: the next import looks it up again

    def __dir__(self) -> list[str]:
        return sorted([*_names(self.__name__), *(OWN if self.__name__ == NAME else ())])


class Loader:
    """Creates the packages, and the functions of tools."""

    def create_module(self, spec: ModuleSpec) -> Any:
        return function(spec.name) if spec.submodule_search_locations is None else Package(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: the module is complete."""


def function(name: str) -> Any:
    """The function of the tool `servers.SERVER.TOOL`."""
    made = servers_index.made()
    if name not in made:
        path = _path(name)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        namespace: dict[str, Any] = {"__name__": name, "__file__": path}
        exec(compile(text, path, "exec"), namespace)  # noqa: S102  # what an import does
        made[name] = namespace[name.rpartition(".")[2]]
    return made[name]


class Offered:
    """The first finder."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        first, *rest = name.split(".")
        if first == SKILLS:
            return _skill(name) if len(rest) < 2 else None
        if first != NAME or len(rest) > 2:
            return None
        servers = servers_index.current()
        if not rest:
            return _spec(name, is_package=True) if servers is not None else None
        if not isinstance(sys.modules.get(NAME), Package):
            return None  # a user's own module
        package = ".".join([NAME, *rest[:-1]])
        if rest[-1] in _names(package):
            return _spec(name, is_package=len(rest) == 1)
        raise ModuleNotFoundError(_missing(package, rest[-1]))


# Errors for missing modules: a package of that name on an index is something else.
_NOTHING = {
    NAME: NO_OFFER,
    SKILLS: f"there are no skills: one is {session_skills.OWN}/NAME.py, with a docstring and test_* functions",
}


class NotOffered:
    """A finder, called if the finders of the user's files have found nothing, and before anything is installed."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        is_import = sys._getframe(2).f_code.co_name == "_find_and_load_unlocked"  # pyright: ignore[reportPrivateUsage]
        if is_import and name in _NOTHING:
            raise ModuleNotFoundError(_NOTHING[name], name=name)
        return None


def install() -> None:
    """Register the finders, before the one that installs packages."""
    sys.meta_path.insert(0, Offered())
    sys.meta_path.append(NotOffered())
    # In the builtins: the user's names take precedence, and no listing of them shows it.
    builtins.callMCPTool = call_mcp_tool  # pyright: ignore[reportAttributeAccessIssue]
    call_mcp_tool.__name__ = call_mcp_tool.__qualname__ = "callMCPTool"


def _spec(name: str, *, is_package: bool) -> ModuleSpec:
    spec = ModuleSpec(name, Loader(), origin=_path(name), is_package=is_package)  # pyright: ignore[reportArgumentType]
    if spec.submodule_search_locations is not None:
        spec.submodule_search_locations.append(os.path.dirname(_path(name)))
    return spec


def _path(name: str) -> str:
    _, *rest = name.split(".")
    return "/".join([ROOT, *rest]) + ".py" if len(rest) > 1 else "/".join([ROOT, *rest, "__init__.py"])


def _names(package: str) -> Sequence[str]:
    servers = servers_index.current() or {}
    if package == NAME:
        return list(servers)
    server = servers.get(package.partition(".")[2])
    return list(server["tools"]) if server else []


def _denied(package: str) -> dict[str, str]:
    server = (servers_index.current() or {}).get(package.partition(".")[2])
    return server.get("denied", {}) if server else {}


def _missing(package: str, name: str) -> str:
    if servers_index.current() is None:
        return NO_OFFER
    if name in _denied(package):
        return f"{package}.{name} is denied by the user's settings: do it another way, or tell the user"
    if package == NAME:
        there = ", ".join(_names(NAME)) or "none"
        return f"there is no MCP server {name!r} among those that are offered: {there}"
    server = (servers_index.current() or {}).get(package.partition(".")[2])
    if server is not None and not server["tools"]:
        return f"{package} has no tools now: {server['about']}"
    hints = search.suggestions(f"{package.partition('.')[2]} {name}")
    perhaps = f": perhaps {', '.join(hints)}" if hints else ""
    return f"{package} has no tool {name!r}{perhaps}"


def _documentation(name: str) -> str | None:
    if name == NAME:
        return "\n".join(
            ['Tools of the user\'s MCP servers. servers.search("words") finds some.', "", *search.overview()]
        )
    try:
        with open(_path(name), encoding="utf-8") as file:
            return ast.get_docstring(ast.parse(file.read()))
    except (OSError, SyntaxError, ValueError):
        return None


def _skill(name: str) -> ModuleSpec | None:
    """`skills`, in both folders; `skills.NAME`, from the current file."""
    folders = session_skills.folders()
    if name == SKILLS:
        users = PathFinder.find_spec(name, [*sys.path, os.path.dirname(session_skills.OWN)])
        is_ours = users is None or users.loader is None or users.origin == f"{session_skills.OWN}/__init__.py"
        if not folders or not is_ours:
            return None
        spec = users if users is not None and users.origin else ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = folders
        return spec
    package = sys.modules.get(SKILLS)
    imported = set(getattr(package, "__path__", ()))
    if package is None or not imported or not imported <= {session_skills.OWN, session_skills.PROMOTED}:
        return None  # a user's own module
    package.__path__ = folders  # one of them may be newer than the package's import
    path = next((path for folder in folders if os.path.isfile(path := f"{folder}/{name.partition('.')[2]}.py")), None)
    return importlib.util.spec_from_file_location(name, path) if path else None
