"""Parts of Jupyter that it does not promise and that Lab's side of ours uses all the same: each is still there, and no
newer version of its library is installed than one that was tried."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager
from jupyter_client.multikernelmanager import AsyncMultiKernelManager
from jupyter_server.extension.manager import ExtensionManager
from jupyter_server.serverapp import ServerApp
from jupyter_server.services.contents.fileio import AsyncFileManagerMixin, FileManagerMixin
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from jupyter_server.services.kernels.kernelmanager import MappingKernelManager
from jupyter_server.services.kernels.websocket import KernelWebsocketHandler
from jupyter_server.services.sessions.sessionmanager import SessionManager
from jupyter_server_ydoc.app import YDocExtension
from jupyter_server_ydoc.loaders import FileLoader
from jupyter_server_ydoc.rooms import DocumentRoom
from jupyterlab.labapp import LabApp
from packaging.requirements import Requirement
from pycrdt.store import BaseYStore
from pycrdt.websocket import WebsocketServer, YRoom
from tornado.web import Application, RequestHandler

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "kernelmcp" / "lab"
# What we read, call or set: library, class, name. By the module of `kernelmcp/lab` that does.
USED = {
    "kernels.py": [
        ("jupyter_client", KernelManager, "_connect_control_socket"),
        ("jupyter_client", KernelManager, "_control_socket"),
        ("jupyter_client", KernelManager, "_close_control_socket"),
        ("jupyter_client", AsyncMultiKernelManager, "_kernels"),
        ("jupyter_server", MappingKernelManager, "_kernel_connections"),
        ("jupyter_server", MappingKernelManager, "_kernel_ports"),
        ("jupyter_server", ZMQChannelsWebsocketConnection, "_kernel_info_future"),
    ],
    "connections.py": [
        ("jupyter_server", ZMQChannelsWebsocketConnection, "on_kernel_restarted"),
        ("jupyter_server", ZMQChannelsWebsocketConnection, "websocket_handler"),
    ],
    "program.py": [("jupyterlab", LabApp, "serverapp_class")],
    "shared/documents.py": [
        ("jupyter_server", ExtensionManager, "extension_apps"),
        ("jupyter_server_ydoc", YDocExtension, "ywebsocket_server"),
        ("jupyter_server_ydoc", YDocExtension, "get_document"),
        ("jupyter_server_ydoc", YDocExtension, "_room_locks"),
        ("jupyter_server_ydoc", DocumentRoom, "initialize"),
        ("jupyter_server_ydoc", DocumentRoom, "_document"),
        ("jupyter_server_ydoc", DocumentRoom, "_saving_document"),
        ("jupyter_server_ydoc", DocumentRoom, "_maybe_save_document"),
        ("jupyter_server_ydoc", DocumentRoom, "_update_lock"),
        ("jupyter_server_ydoc", DocumentRoom, "_file"),
        ("jupyter_server_ydoc", FileLoader, "_lock"),
        ("jupyter_server_ydoc", FileLoader, "last_modified"),
        ("pycrdt-websocket", YRoom, "ready"),
        ("pycrdt-websocket", YRoom, "clients"),
        ("pycrdt-websocket", WebsocketServer, "started"),
        ("pycrdt-websocket", WebsocketServer, "rooms"),
    ],
    "watch.py": [
        ("jupyter_server", SessionManager, "cursor"),
        ("jupyter_server", SessionManager, "save_session"),
    ],
}
USES = [(file, *use) for file, uses in USED.items() for use in uses]
# What Jupyter asks for and we answer instead. Module, name, who asks for it, and how.
OVERRIDDEN = [
    (
        "kernels.py",
        "_kernel_info_future",
        ZMQChannelsWebsocketConnection,
        "future = self.kernel_manager._kernel_info_future",
    ),
    ("kernels.py", "buffer_offline_messages", MappingKernelManager, "if not self.buffer_offline_messages:"),
    ("connections.py", "prepare", KernelWebsocketHandler, "self.connection.prepare()"),
    ("connections.py", "disconnect", KernelWebsocketHandler, "self.connection.disconnect()"),
    (
        "connections.py",
        "handle_incoming_message",
        KernelWebsocketHandler,
        "self.connection.handle_incoming_message(",
    ),
    (
        "connections.py",
        "handle_outgoing_message",
        ZMQChannelsWebsocketConnection,
        "on_recv_stream(self.handle_outgoing_message)",
    ),
    ("shared/contents.py", "atomic_writing", AsyncFileManagerMixin, "with self.atomic_writing(os_path, encoding="),
    ("shared/contents.py", "perm_to_403", FileManagerMixin, "with self.perm_to_403("),
    ("shared/history.py", "write", YRoom, "self.ystore.write"),
    ("shared/history.py", "read", BaseYStore, "in self.read()"),
    ("server_app.py", "cleanup_extensions", ServerApp, "await self.cleanup_extensions()"),
]
# A minor version may drop what is private. pycrdt and jupyter-ydoc come with the bounds of jupyter-server-ydoc.
BOUND = ("jupyterlab", "jupyter-server", "jupyter-server-ydoc")
# Ours, made from theirs.
CLASSES = [
    ("connections", "BrowserConnection"),
    ("shared.contents", "Contents"),
    ("shared.history", "History"),
    ("kernels", "AttachedKernel"),
    ("kernels", "SessionKernels"),
    ("server_app", "LabServer"),
    ("specs", "SessionSpecs"),
]


def has(owner: type, name: str) -> bool:
    """As an attribute of the class, or set by one of its methods."""
    sources = (inspect.getsource(one) for one in owner.__mro__ if one is not object)
    return hasattr(owner, name) or any(re.search(rf"\bself\.{name}\b.* = ", source) for source in sources)


@pytest.mark.parametrize(
    ("file", "library", "owner", "name"), USES, ids=[f"{owner.__name__}.{name}" for _, _, owner, name in USES]
)
def test_a_name_that_is_not_promised_is_still_there(file: str, library: str, owner: type, name: str) -> None:
    assert re.search(rf"\b{name}\b", (LAB / file).read_text("utf-8")), f"lab/{file} no longer uses it: take it out here"
    assert has(owner, name), (
        f"{library} {version(library)} has no {owner.__name__}.{name} any more, which lab/{file} uses"
    )


@pytest.mark.parametrize(
    ("file", "name", "asks", "how"), OVERRIDDEN, ids=[f"{asks.__name__}-{name}" for _, name, asks, _ in OVERRIDDEN]
)
def test_jupyter_still_asks_for_what_we_override(file: str, name: str, asks: type, how: str) -> None:
    assert re.search(rf"\b{name}\b", (LAB / file).read_text("utf-8")), f"lab/{file} has no {name}: take it out here"
    assert how in inspect.getsource(asks), f"{asks.__name__} no longer has `{how}`, and lab/{file} relies on it"


def test_every_private_name_is_known_here() -> None:
    """In `kernelmcp/lab`: of what is not ours."""
    known = {name for uses in USED.values() for _, _, name in uses} | {name for _, name, _, _ in OVERRIDDEN}
    for file in sorted(LAB.rglob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        nodes = list(ast.walk(tree))
        named = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        ours = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
        ours |= {
            node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
        ours |= {target.id for node in nodes if isinstance(node, ast.Assign) for target in node.targets
                 if isinstance(target, ast.Name)}  # fmt: skip
        ours |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                 and isinstance(node.value, ast.Name) and node.value.id == "self"}  # fmt: skip
        private = {name for name in named if name.startswith("_") and not name.startswith("__")}
        assert private - ours - known == set(), f"{file.name} uses private names that are not looked for"
        assert not [module for module in modules if "._" in module], f"{file.name} imports a private module"


@pytest.mark.parametrize(("module", "name"), CLASSES, ids=[name for _, name in CLASSES])
def test_no_private_name_of_ours_is_jupyters_by_accident(module: str, name: str) -> None:
    """One that a new version happens to have as well would be used by both."""
    ours: Any = getattr(import_module(f"kernelmcp.lab.{module}"), name)
    nodes = list(ast.walk(ast.parse(inspect.getsource(ours))))
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    names |= {node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    private = {one for one in names if one.startswith("_") and not one.startswith("__")}
    known = {one for uses in USED.values() for _, _, one in uses} | {one for _, one, _, _ in OVERRIDDEN}
    assert {one for one in private - known if any(has(base, one) for base in ours.__bases__)} == set()


@pytest.mark.parametrize("library", BOUND)
def test_a_library_whose_inner_parts_are_used_has_an_upper_bound(library: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    [requirement] = [found for found in map(Requirement, extras["lab"]) if found.name == library]
    bounds = {part.operator for part in requirement.specifier} & {"<", "<=", "==", "~="}
    assert bounds, f"{requirement} has no upper bound"
    assert version(library) in requirement.specifier


def test_lab_asks_our_handlers_before_its_own() -> None:
    """handlers.py adds them to those that are there already."""

    class Theirs(RequestHandler):
        pass

    class Ours(RequestHandler):
        pass

    application = Application([("/api/kernels", Theirs)])
    application.add_handlers(".*$", [("/api/kernels", Ours)])
    [found] = [rule.target for rule in application.default_router.rules[:1]]
    assert [rule.target for rule in found.rules] == [Ours], "tornado asks handlers that are added after its own"
