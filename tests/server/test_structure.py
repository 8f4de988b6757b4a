"""The folders show the architecture: which imports go where, and in which direction."""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
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
    "shares",
    "version",
]
KERNEL_ORDER = [
    "fork_server",
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
# Code that runs apart from both packages, in a guest or in the decoder: where its imports begin, and its folder.
APART = {
    "inside": (KERNEL / "inside", KERNEL / "inside"),
    "shell": (KERNEL / "languages" / "shell", KERNEL / "languages" / "shell" / "kernelmcp_shell"),
    "decoder": (SERVER / "pictures" / "decoder_process",) * 2,
    "demo": (SERVER / "commands" / "demo_guest",) * 2,
}
HOST, JAVASCRIPT = KERNEL / "host", KERNEL / "languages" / "javascript"
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
# File names that occur more than once, because they mean the same wherever they occur.
ONE_MEANING = {
    "allowed_hosts": "the hosts that a guest may reach",
    "build": "builds what a language's guests run on, at installation",
    "descriptors": "the files by which Jupyter programs find sessions",
    "files": "the session's folders, as a cell sees them",
    "frames": "the pipe between a guest and its kernel process",
    "image": "the boot image",
    "interrupts": "interrupts of a guest",
    "json_bounds": "bounds on JSON before it is parsed",
    "language": "how guests of a language are started",
    "network": "a cell's requests",
    "quota": "the storage quota of a session, counted in the guest",
    "settings": "the settings of a process",
    "skills": "code that a person promoted for later sessions",
    "storage": "what a session's files take, and may",
    "streams": "what a guest prints, collected and sent",
    "tool_calls": "calls of tools of the user's other MCP servers",
    "tool_offers": "the tools that a kernel is offered",
    "tools": "tools of the user's other MCP servers, in JavaScript",
    "vega": "charts of altair",
}
# File names that still have several meanings. None may be added.


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


def circles(below: Mapping[str, set[str]]) -> Mapping[str, set[str]]:
    """The part of a graph that goes in a circle."""
    while True:
        above = set[str]().union(*below.values())
        inside = {name: others & below.keys() for name, others in below.items() if name in above}
        inside = {name: others for name, others in inside.items() if others}
        if inside.keys() == below.keys():
            return below
        below = inside


def graph(base: Path, files: Iterator[Path]) -> dict[str, set[str]]:
    """Which modules import which, by their names from `base` on."""
    named = {".".join(file.relative_to(base).with_suffix("").parts): file for file in files}
    named = {name.removesuffix(".__init__"): file for name, file in named.items()}
    below = {name: {other for other in imported(file) if other in named} - {name} for name, file in named.items()}
    for name, others in below.items():
        # `from package import module` imports the module: the package is there anyway.
        below[name] = {one for one in others if not any(other.startswith(f"{one}.") for other in others)}
    return below


@pytest.mark.parametrize("root", [SERVER, KERNEL], ids=["server", "kernel"])
def test_no_modules_import_each_other_in_a_circle(root: Path) -> None:
    """Not in a function either, and not for a type: whoever reads one of them would have to read all."""
    assert circles(graph(root.parent, modules(root))) == {}


@pytest.mark.parametrize("name", APART)
def test_code_that_runs_apart_has_no_circle_and_imports_nothing_of_the_packages(name: str) -> None:
    base, folder = APART[name]
    below = graph(base, folder.rglob("*.py"))
    assert any(below.values()) or name == "demo"
    assert circles(below) == {}
    for file in folder.rglob("*.py"):
        assert not {"kernelmcp", "kernelmcp_kernel"} & {each.partition(".")[0] for each in imported(file)}, file


def scripts(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        for file in sorted((*folder.rglob("*.[cm]js"), *folder.rglob("*.js"))):
            if not {"node_modules", "_runtime"} & set(file.parts):
                yield file


def imported_scripts(file: Path) -> list[str]:
    """What a script imports, types too."""
    return re.findall(r"""(?:^import |\bfrom |\bimport ?\()["']([^"']+)["']""", file.read_text("utf-8"), re.MULTILINE)


def test_no_scripts_import_each_other_in_a_circle() -> None:
    below = {
        str(file): {str((file.parent / name).resolve()) for name in imported_scripts(file) if name.startswith(".")}
        for file in scripts(HOST, JAVASCRIPT)
    }
    assert set[str]().union(*below.values()) <= below.keys()
    assert circles(below) == {}


def test_scripts_import_one_way() -> None:
    packages = set(json.loads((JAVASCRIPT / "package.json").read_text("utf-8"))["dependencies"])
    for file in scripts(HOST, JAVASCRIPT):
        own = [name for name in imported_scripts(file) if not name.startswith("node:")]
        if file.is_relative_to(HOST):  # what it loads from files of the runtime is no import
            assert all(re.fullmatch(r"(\./(state/)?|\.\./)\w+\.mjs", name) for name in own), file
        elif file.parent.name == "world":  # runs in QuickJS, each as one function
            assert own == [], file
        else:
            assert all(re.match(r"\./|\.\./\.\./host/", name) or name in packages for name in own), file


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


def test_modules_and_folders_are_small_and_say_what_they_are() -> None:
    apart = [file for name in ("inside", "shell", "decoder") for file in APART[name][1].rglob("*.py")]
    for file in [*modules(SERVER), *modules(KERNEL), *apart]:
        text = file.read_text("utf-8")
        said = ast.get_docstring(ast.parse(text))
        assert said, file
        assert len(text.splitlines()) <= MAX_LINES or "long because" in said, file
    for file in [*modules(SERVER), *modules(KERNEL)]:
        assert len(list(file.parent.glob("*.py"))) <= MAX_MODULES, file.parent


def test_classes_have_few_public_methods() -> None:
    for file in (*SERVER.rglob("*.py"), *KERNEL.rglob("*.py")):
        if "_runtime" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                functions = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
                public = [one.name for one in functions if not one.name.startswith("_")]
                assert len(public) <= MAX_PUBLIC_METHODS, (file, node.name)


def test_classes_of_scripts_have_few_public_methods() -> None:
    found = 0
    for file in scripts(HOST, JAVASCRIPT):
        text = file.read_text("utf-8")
        for start in re.finditer(r"^( *)(?:\S.*)?\bclass \w+.*\{$", text, re.MULTILINE):
            indent = start[1]
            body = text[start.end() :].partition(f"\n{indent}}}")[0]
            methods = re.findall(rf"^{indent}  (?:(?:static|async|get|set) |\*)*([a-z]\w*)\(.*\{{$", body, re.MULTILINE)
            found += 1
            assert len(set(methods) - {"constructor"}) <= MAX_PUBLIC_METHODS, (file, start[0])
    assert found > 10


def test_node_ends_in_one_place() -> None:
    """`process.exit` may wait for ever for V8's threads (host/leave.mjs)."""
    files = [file for file in scripts(KERNEL) if "world" not in file.parts]  # that runs in QuickJS
    ends = [file.name for file in files if "process.exit(" in file.read_text("utf-8")]
    assert ends == ["leave.mjs"]


def test_a_file_name_has_one_meaning() -> None:
    """Who searches for a name finds one place. To add a name to ONE_MEANING, say what it means in all of them."""
    files = [*SERVER.rglob("*.py"), *KERNEL.rglob("*.py"), *scripts(KERNEL)]
    names = Counter(file.stem for file in files if not {"_runtime", "node_modules"} & set(file.parts))
    twice = {name for name, count in names.items() if count > 1} - {"__init__", "__main__"}
    assert twice == ONE_MEANING.keys()
