"""What the code may import."""

import ast
from pathlib import Path

SERVER = Path(__file__).parents[2] / "kernelmcp"


def imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_jupyter_client_and_zmq_are_imported_in_one_module() -> None:
    importers = {file.name for file in SERVER.rglob("*.py") if "jupyter_client" in imports(file)}
    assert importers - {"doctor.py"} == {"kernel.py"}


def test_the_server_never_imports_the_kernels() -> None:
    assert not [file.name for file in SERVER.rglob("*.py") if {"kernelmcp_kernel", "ipykernel"} & imports(file)]


def test_modules_are_small_and_say_what_they_are() -> None:
    for file in SERVER.rglob("*.py"):
        text = file.read_text("utf-8")
        assert ast.get_docstring(ast.parse(text)), file
        assert len(text.splitlines()) <= 400, file
