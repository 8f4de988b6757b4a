"""The guest's JavaScript as one small file: twenty, each checked by Node's permissions, take 50 ms more to start.

Built when kernelmcp is installed. Not used if the sources have changed since.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from kernelmcp_kernel.runtime.build_identity import FORMAT, digest, node_binary
from kernelmcp_kernel.runtime.npm import run_program

BUNDLE = "node_modules/kernelmcp-bundle"
_STAMP = "stamp"
_ALIASES = ".aliases"
_MAIN = "javascript_guest.mjs"
# An `import` of one of these loads all its exports, including file streams: 10 ms.
_OF_NODE = ("fs", "net", "path", "process", "zlib")
_WEBASSEMBLY = "@jitl/quickjs-ng-wasmfile-release-sync/dist/emscripten-module.wasm"


def make_bundle(folder: Path) -> None:
    """Build the bundle of this language's folder, whose node_modules contain esbuild. Raises BuildError."""
    modules, bundle = folder / "node_modules", folder / BUNDLE
    program = [node_binary(), modules / "esbuild-wasm" / "bin" / "esbuild", folder / _MAIN]
    options = ["--bundle", "--platform=node", "--format=esm", "--target=node24", "--log-level=warning"]
    options += ["--minify-whitespace", "--minify-syntax"]  # names are kept for tracebacks
    options.append("--tsconfig-raw={}")  # a parent folder may have one, which an installation's sources have not
    aliases = modules / _ALIASES
    aliases.mkdir()
    try:
        for name in _OF_NODE:
            file = aliases / f"{name}.mjs"
            file.write_text(f'export default process.getBuiltinModule("node:{name}");\n', "utf-8")
            options.append(f"--alias:node:{name}={file}")
        # esbuild names modules by their paths from here, and the bundle must not depend on where it was made.
        run_program("esbuild", [*program, *options, f"--outfile={bundle / _MAIN}"], cwd=folder)
    finally:
        shutil.rmtree(aliases)
    shutil.copytree(folder / "world", bundle / "world")
    shutil.copyfile(modules / _WEBASSEMBLY, bundle / Path(_WEBASSEMBLY).name)
    (bundle / _STAMP).write_text(sources(folder), "utf-8")


def entry(folder: Path) -> Path:
    """The script that starts a guest: from the bundle if it is current, otherwise from the sources."""
    bundle = folder / BUNDLE
    try:
        is_fresh = (bundle / _STAMP).read_text("utf-8") == sources(folder)
    except FileNotFoundError:
        is_fresh = False
    return (bundle if is_fresh else folder) / _MAIN


def sources(folder: Path) -> str:
    """A digest of the files that the bundle is built from. Takes about a millisecond."""
    package = folder.parents[1]
    host = [*(package / "host").glob("*.mjs"), *(package / "host" / "state").glob("*.mjs")]
    scripts = [*folder.glob("*.mjs"), *(folder / "world").glob("*.js"), *host]
    packages = [folder / "package.json", folder / "package-lock.json"]
    return digest([FORMAT, Path(__file__).read_text("utf-8")], package, [*scripts, *packages])
