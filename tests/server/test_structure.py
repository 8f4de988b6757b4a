"""The folders show the architecture: which imports go where, and in which direction."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "kernelmcp"
KERNEL = ROOT / "kernels" / "kernelmcp_kernel"

# From the top down. A folder or module imports what stands below it, and what stands on its own line is one place.
SERVER_ORDER = [
    "__main__",
    "cli",
    "commands",
    "lab",
    "__init__",
    "server",
    "http",
    "stdio",
    "mcp_server",
    "preflight",
    "pictures",
    "observability",
    "sessions",
    "code_mode",
    "upstreams",
    "notebook",
    "executions",
    "kernel",
    "cells",
    "output",
    "files",
    "config",
    "atomic",
    "errors",
    "json_bounds",
    "process_start",
    "version",
]
KERNEL_ORDER = [
    "__main__",
    "jupyter",
    "network",
    "prepare",
    "packages",
    "guests",
    "languages",
    "runtime",
    "sandbox",
    "settings",
    "json_bounds",
    "__init__",
]
# Libraries that one folder has to itself, and who may know them besides.
ONE_PLACE = {
    "jupyter_client": {"kernel", "commands", "lab"},  # doctor looks for kernelspecs; lab is a Jupyter program
    "zmq": {"kernel", "lab"},
    "starlette": {"http", "server", "observability"},
    "uvicorn": {"http"},
    "jwt": {"http"},
}
# A module that is longer, with its reason in its docstring.
MAX_LINES = 450
MAX_MODULES = 17  # __init__ among them
MAX_PUBLIC_METHODS = 20  # of a class, properties among them


def place(file: Path, root: Path) -> str:
    return file.relative_to(root).parts[0].removesuffix(".py")


def modules(root: Path) -> Iterator[Path]:
    for file in sorted(root.rglob("*.py")):
        if not {"_runtime", "inside", "decoder_process", "demo_guest"} & set(file.parts):
            yield file


@cache
def imported(file: Path) -> list[str]:
    """Full names of modules, those of lazy imports and of types too."""
    found: list[str] = []
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    return found


def crossing(root: Path, order: list[str]) -> Iterator[tuple[Path, str, str]]:
    """Each import from one place into another: the file, its place, the other."""
    for file in modules(root):
        for name in imported(file):
            package, *rest = name.split(".")
            # `import kernelmcp` alone imports the package's `__init__`.
            other = rest[0] if rest else "__init__"
            if package == root.name and other in order and other != place(file, root):
                yield file, place(file, root), other


@pytest.mark.parametrize(("root", "order"), [(SERVER, SERVER_ORDER), (KERNEL, KERNEL_ORDER)], ids=["server", "kernel"])
def test_imports_go_one_way(root: Path, order: list[str]) -> None:
    assert {place(file, root) for file in modules(root)} == set(order)
    up = [
        f"{file.relative_to(root)} imports {other}"
        for file, own, other in crossing(root, order)
        if order.index(other) < order.index(own)
    ]
    assert up == []


@pytest.mark.parametrize("root", [SERVER, KERNEL], ids=["server", "kernel"])
def test_no_modules_import_each_other_in_a_circle(root: Path) -> None:
    """Not in a function either, and not for a type: whoever reads one of them would have to read all."""
    named = {".".join(file.relative_to(root.parent).with_suffix("").parts): file for file in modules(root)}
    named = {name.removesuffix(".__init__"): file for name, file in named.items()}
    below = {name: {other for other in imported(file) if other in named} - {name} for name, file in named.items()}
    for name, others in below.items():
        # `from package import module` imports the module: the package is there anyway.
        below[name] = {one for one in others if not any(other.startswith(f"{one}.") for other in others)}
    while True:
        above = set[str]().union(*below.values())
        inside = {name: others & below.keys() for name, others in below.items() if name in above}
        inside = {name: others for name, others in inside.items() if others}
        if inside.keys() == below.keys():
            break
        below = inside
    assert below == {}


def test_the_server_and_the_kernels_never_import_each_other() -> None:
    for root, other in ((SERVER, {"kernelmcp_kernel", "ipykernel"}), (KERNEL, {"kernelmcp"})):
        for file in modules(root):
            assert not other & {name.partition(".")[0] for name in imported(file)}, file


@pytest.mark.parametrize("library", ONE_PLACE)
def test_a_library_has_one_place(library: str) -> None:
    users = {
        place(file, SERVER)
        for file in modules(SERVER)
        if library in {name.partition(".")[0] for name in imported(file)}
    }
    assert users
    assert users <= ONE_PLACE[library]


def test_the_decoder_knows_nothing_of_ours() -> None:
    for file in (SERVER / "pictures" / "decoder_process").glob("*.py"):
        assert not any(name.startswith("kernelmcp") for name in imported(file)), file


def test_modules_and_folders_are_small_and_say_what_they_are() -> None:
    for root in (SERVER, KERNEL):
        for file in modules(root):
            text = file.read_text("utf-8")
            said = ast.get_docstring(ast.parse(text))
            assert said, file
            assert len(text.splitlines()) <= MAX_LINES or "long because" in said, file
            assert len(list(file.parent.glob("*.py"))) <= MAX_MODULES, file.parent


def test_classes_have_few_public_methods() -> None:
    for file in [*modules(SERVER), *modules(KERNEL), *(KERNEL / "inside").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                functions = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
                public = [one.name for one in functions if not one.name.startswith("_")]
                assert len(public) <= MAX_PUBLIC_METHODS, (file, node.name)
