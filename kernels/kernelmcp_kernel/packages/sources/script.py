"""Detects a setup.py that always compiles, without running it. Part of a run of pip (`in_pip`).

This check costs nothing; a build, ten seconds. Anything unclear is left to the build.
"""

from __future__ import annotations

import ast


def needs_compiler(script: bytes) -> bool:
    """Return whether it calls setup() at its top level with extensions that are not optional, without a custom build,
    and outside any condition."""
    try:
        statements = ast.parse(script).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    called = [each.value for each in statements if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)]
    for call in called:
        options = {each.arg: each.value for each in call.keywords}
        if _name(call.func) == "setup" and not options.keys() & {None, "cmdclass", "distclass"}:
            extensions = options.get("ext_modules")
            return extensions is not None and _has_extension(_assigned(extensions, statements))
    return False


def _assigned(value: ast.expr, statements: list[ast.stmt]) -> ast.expr | None:
    """The value of a name that occurs only twice: where it is assigned, and here."""
    if not isinstance(value, ast.Name):
        return value
    uses = [each for each in ast.walk(ast.Module(statements, [])) if isinstance(each, ast.Name) and each.id == value.id]
    for each in statements:
        if isinstance(each, ast.Assign) and [_name(target) for target in each.targets] == [value.id] and len(uses) == 2:
            return each.value
    return None


def _has_extension(value: ast.expr | None) -> bool:
    """Return whether it is a list with a required extension."""
    calls = [each for each in value.elts if isinstance(each, ast.Call)] if isinstance(value, ast.List) else []
    return any(
        _name(call.func) == "Extension" and not {each.arg for each in call.keywords} & {None, "optional"}
        for call in calls
    )


def _name(value: ast.expr) -> str:
    return value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
