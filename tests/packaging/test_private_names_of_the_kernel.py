"""Private parts of other packages that the kernel process and its programs use. Their next version may drop any of
them without a word: each test here says which of our modules would break."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from ipykernel.control import ControlThread
from ipykernel.iostream import IOPubThread
from ipykernel.kernelbase import Kernel
from jupyter_client.session import Session
from zmq.eventloop.zmqstream import ZMQStream

import kernelmcp_kernel
from kernelmcp_kernel.jupyter.channels.kernel_session import KernelSession
from kernelmcp_kernel.jupyter.channels.shell_stream import ShellStream
from kernelmcp_kernel.jupyter.requests import AnsweringKernel
from kernelmcp_kernel.jupyter.sandbox_kernel import SandboxKernel

PYODIDE = Path(kernelmcp_kernel.__file__).parent / "_runtime" / "pyodide"
KERNELBASE = inspect.getsource(inspect.getmodule(Kernel) or Kernel)

# Ours, or ipykernel's: methods and attributes that it reads, and that we override or set.
OVERRIDDEN = {
    "_execute_sleep": "after each execution",
    "_abort_queues": "after an error",
    "_progressively_terminate_all_children": "at the end of a process",
    "finish_metadata": "for the metadata of a reply",
    "kernel_info": "for the kernel_info_reply",
    "control_handlers": "to find the handler of a request on control",
    "shell_handlers": "to find the handler of a request on shell",
    "shell_main": "for each message on shell",
    "interrupt_request": "as the handler of an interrupt_request",
    "should_handle": "before each request on shell",
}
# Attributes of ipykernel's that we read.
READ = [
    "_main_asyncio_lock",
    "_get_shell_context_var",
    "_shell_parent_ident",
    "shell_channel_thread",
    "_topic",
    "_publish_status",
    "_send_abort_reply",
    "get_parent",
    "record_ports",
]


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_ipykernel_still_asks_for_what_we_override(name: str) -> None:
    uses = re.findall(rf"\.{name}\b|[\"']{name}[\"']", KERNELBASE)
    named = name.endswith("_request") and name in Kernel.control_msg_types
    assert uses or named, f"ipykernel no longer uses Kernel.{name} {OVERRIDDEN[name]}; SandboxKernel relies on it"


@pytest.mark.parametrize("name", READ)
def test_ipykernel_still_has_what_we_read(name: str) -> None:
    has = hasattr(Kernel, name) or f"self.{name} =" in KERNELBASE or f"self.{name}:" in KERNELBASE
    assert has, f"ipykernel's Kernel.{name} is gone; kernelmcp_kernel/jupyter uses it"


def test_our_kernel_takes_no_private_name_of_ipykernels_by_accident() -> None:
    """A name of ours that a new ipykernel happens to have as well would be used by both."""
    nodes = [node for kind in (SandboxKernel, AnsweringKernel) for node in ast.walk(ast.parse(inspect.getsource(kind)))]
    ours = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    ours |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    private = {name for name in ours if name.startswith("_") and not name.startswith("__")}
    theirs = {name for name in private if hasattr(Kernel, name) or f"self.{name} =" in KERNELBASE}
    assert theirs - set(OVERRIDDEN) == set()


def test_ipykernels_threads_take_what_the_launcher_gives_them() -> None:
    assert "io_loop" in inspect.getsource(inspect.getmro(ControlThread)[1]), "launcher.py puts control's stream on it"


def test_ipykernel_needs_of_iopub_what_our_socket_has() -> None:
    assert hasattr(IOPubThread, "schedule"), "backlog.py sends through it under IPKernelApp"
    assert "self.socket =" in inspect.getsource(IOPubThread), "backlog.py sends on it under IPKernelApp"
    uses = re.findall(r"self\.iopub_\w+.?", KERNELBASE)
    assert set(uses) == {"self.iopub_socket,"}, "Session.send is all that IopubSocket (iopub_socket.py) is used for"


def test_ipykernel_needs_of_the_shell_stream_what_ours_has() -> None:
    uses = re.findall(r"(?:self\.shell_)?stream\.(?!io_loop)\w+", KERNELBASE)
    assert {use.removeprefix("self.shell_") for use in uses} == {"stream.on_recv", "stream.flush"}
    assert "_async_in_context(partial(self.shell_main, None))" in KERNELBASE, "SandboxKernel.start makes its task"


def test_our_shell_stream_takes_no_private_name_of_zmqs_by_accident() -> None:
    nodes = list(ast.walk(ast.parse(inspect.getsource(ShellStream))))
    ours = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    ours |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    theirs = set(re.findall(r"self\.(\w+)|def (\w+)", inspect.getsource(ZMQStream)))
    names = {name for pair in theirs for name in pair}
    assert ours & names == {"__init__", "on_recv", "send_multipart", "flush"}


def test_jupyter_clients_session_has_what_ours_replaces_and_nothing_of_its_own_by_accident() -> None:
    nodes = list(ast.walk(ast.parse(inspect.getsource(KernelSession))))
    ours = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    ours |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    theirs = {name for name in ours if hasattr(Session, name)}
    assert theirs == {"__init__", "msg_header", "msg", "sign", "serialize", "send", "deserialize"}
    assert not {name for name in ours - theirs if f"self.{name} =" in inspect.getsource(Session)}
    assert list(inspect.signature(vars(Session)["_add_digest"]).parameters) == ["self", "signature"], (
        "kernel_session.py adds it"
    )


def test_pip_judges_markers_by_the_environment_that_pip_main_puts_in(monkeypatch: pytest.MonkeyPatch) -> None:
    from pip._vendor.packaging import markers

    def guest() -> Any:
        return {**stock(), "sys_platform": "emscripten"}

    stock = markers.default_environment
    marker = markers.Marker('sys_platform == "emscripten"')
    assert not marker.evaluate()
    monkeypatch.setattr(markers, "default_environment", guest)
    assert marker.evaluate(), "pip no longer asks markers.default_environment; packages/pip_main.py replaces it"


def test_pip_reads_requirements_with_the_class_that_pip_main_guards() -> None:
    from pip._internal.req import constructors
    from pip._vendor.packaging import requirements
    from pip._vendor.packaging.requirements import Requirement

    assert vars(constructors)["Requirement"] is Requirement, "packages/pip_main.py refuses addresses in another class"
    assert Requirement("x @ file:///y").url == "file:///y", "packages/pip_main.py looks at url"
    assert issubclass(requirements.InvalidRequirement, ValueError)
    assert list(inspect.signature(Requirement.__init__).parameters) == ["self", "requirement_string"]


def test_pip_still_starts_where_pip_main_starts_it() -> None:
    from pip._internal.cli.main import main

    assert next(iter(inspect.signature(main).parameters)) == "args", "packages/pip_main.py passes the arguments"


@pytest.mark.parametrize(
    ("file", "name", "user"),
    [
        ("pyodide.asm.mjs", "_makeSnapshot", "host/pyodide.mjs asks for a heap that can be saved"),
        ("pyodide.mjs", "_loadSnapshot", "host/image.mjs restores one"),
        ("pyodide.mjs", "createPyodideModule", "host/image.mjs puts the heap into the module"),
        ("pyodide.mjs", "checkAPIVersion", "host/pyodide.mjs switches the check off"),
        ("pyodide.mjs", "lockFileContents", "host/pyodide.mjs leaves the packages out"),
        ("pyodide.asm.mjs", "makeMemorySnapshot", "host/build_image.mjs saves the heap"),
        ("pyodide.mjs", "restoreSnapshot", "host/image.mjs replaces it"),
        ("pyodide.asm.mjs", "_emscripten_system", "host/node_shims.mjs knows Pyodide's module by it"),
        ("pyodide.asm.mjs", r"pyodide\.asm\.mjs", "host/start_guest.cjs gives the bundle that name"),
        ("pyodide.asm.mjs", "growMemory", "host/image.mjs makes room for the heap"),
        ("pyodide.asm.mjs", "HEAPU8", "host/image.mjs writes into it"),
    ],
)
def test_pyodide_still_has_the_name_that_the_host_uses(file: str, name: str, user: str) -> None:
    assert re.search(rf"\b{name}\b", (PYODIDE / file).read_text("utf-8")), f"{name} is gone from {file}; {user}"


@pytest.mark.parametrize(
    "name",
    [
        "GOT", "LDSO", "getDylinkMetadata", "mergeLibSymbols", "newDSO", "relocateExports", "resolveGlobalSymbol",
        "setWasmTableEntry", "wasmTable",
    ],
)  # fmt: skip
def test_emscripten_still_lets_shared_objects_be_loaded(name: str) -> None:
    module = (PYODIDE / "pyodide.asm.mjs").read_text("utf-8")
    assert f'Module["{name}"]=' in module, f"{name} is not on the module any more; host/libraries.mjs loads with it"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("pip._internal.index.package_finder", "LinkEvaluator.evaluate_link"),
        ("pip._internal.index.package_finder", "CandidateEvaluator.get_applicable_candidates"),
        ("pip._internal.index.package_finder", "LinkType.candidate"),
        ("pip._internal.index.package_finder", "LinkType.different_project"),
        ("pip._internal.index.package_finder", "LinkType.format_unsupported"),
        ("pip._internal.index.package_finder", "LinkType.platform_mismatch"),
        ("pip._internal.index.package_finder", "LinkType.requires_python_mismatch"),
        ("pip._internal.operations.prepare", "RequirementPreparer.prepare_linked_requirements_more"),
        ("pip._internal.operations.prepare", "RequirementPreparer.prepare_linked_requirement"),
        ("pip._internal.index.package_finder", "PackageFinder.find_best_candidate"),
        ("pip._internal.index.package_finder", "PackageFinder.make_candidate_evaluator"),
        ("pip._internal.index.package_finder", "BestCandidateResult"),
        ("pip._internal.metadata", "get_metadata_distribution"),
        ("pip._internal.models.candidate", "InstallationCandidate"),
        ("pip._internal.models.link", "Link.as_hashes"),
        ("pip._internal.commands.download", "DownloadCommand.run"),
        ("pip._internal.network.session", "PipSession.is_secure_origin"),
        ("pip._internal.resolution.resolvelib.candidates", "LinkCandidate.__init__"),
        ("pip._internal.resolution.resolvelib.factory", "Factory.get_installation_error"),
        ("pip._internal.resolution.resolvelib.factory", "Factory._has_any_candidates"),
        ("pip._internal.resolution.resolvelib.requirements", "RequiresPythonRequirement.get_candidate_lookup"),
        ("pip._internal.exceptions", "HashErrors.append"),
        ("pip._internal.exceptions", "HashMismatch"),
        ("pip._internal.exceptions", "IncompleteDownloadError"),
        ("pip._internal.exceptions", "InvalidWheel"),
        ("pip._internal.exceptions", "MetadataInconsistent"),
        ("pip._internal.exceptions", "MetadataInvalid"),
        ("pip._internal.exceptions", "NetworkConnectionError"),
        ("pip._internal.exceptions", "ResolutionTooDeepError"),
        ("pip._internal.exceptions", "UnsupportedWheel"),
        ("pip._internal.utils.hashes", "Hashes.check_against_path"),
        ("pip._vendor.resolvelib", "Resolver.resolve"),
        ("pip._vendor.packaging.markers", "default_environment"),
        ("pip._vendor.packaging.requirements", "Requirement.__init__"),
    ],
)
def test_pip_still_has_what_we_replace(module: str, name: str) -> None:
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    assert found is not None, f"{module}.{name} is gone; pip_main.py, or a part of it, uses it"
