"""Hatchling's hook: builds what the guests of each language run on, and the libraries that draw in views, before
a wheel (an editable one too) is packed, and writes the wheel's SBOM."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VIEWS = Path("kernelmcp", "mcp_server", "views")
# Libraries of views, each of these files of npm packages; Vega's are those of the guest's runtime.
MADE_OF = {
    "plotly": ["plotly.js-cartesian-dist-min/plotly-cartesian.min.js"],
    "markup": ["marked/lib/marked.umd.js", "katex/dist/katex.min.js"],
}

# How an editable installation finds `kernelmcp`. Hatchling's own way takes 30 ms of each start of Python, and with this
# folder on sys.path `kernels`, another project's name, would become importable.
FINDER = """\
from sys import meta_path
from _frozen_importlib_external import PathFinder


class Finder:
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{root!r}], target) if name == "kernelmcp" else None


meta_path.append(Finder)
"""


class RuntimeBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        sys.path.insert(0, str(root / "kernels"))  # in the build's own process, which ends with the build
        from kernelmcp_kernel.languages import builders
        from kernelmcp_kernel.runtime.build_identity import BuildError

        try:
            for build_runtime in builders():
                build_runtime(root / "kernels" / "kernelmcp_kernel", self.app.display_info)
            build_view_libraries(root)
        except BuildError as error:
            self.app.abort(f"kernelmcp: {error}")
        self.scratch = Path(tempfile.mkdtemp(prefix="kernelmcp-wheel-"))
        if version == "editable":
            texts = {
                "_kernelmcp_finder.py": FINDER.format(root=str(root)),
                "_kernelmcp_finder.pth": "import _kernelmcp_finder\n",
            }
            for name, text in texts.items():
                (self.scratch / name).write_text(text, "utf-8")
                build_data["force_include_editable"][str(self.scratch / name)] = name
        else:
            build_data["sbom_files"].append(str(self._write_sbom(root)))

    def _write_sbom(self, root: Path) -> Path:
        sys.path.append(str(root / "scripts"))
        from sbom import SbomError, sbom

        try:
            found = sbom(root, self.metadata.version)
        except (SbomError, KeyError) as error:
            shutil.rmtree(self.scratch)
            self.app.abort(f"kernelmcp: {error}")
            raise
        file = self.scratch / "kernelmcp.cdx.json"
        file.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        return file

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self.scratch)


def build_view_libraries(root: Path) -> None:
    """Make a script of each library, with the function that a view calls, unless it is current. Raises BuildError."""
    from kernelmcp_kernel.runtime.npm import npm_files

    views, vega = root / VIEWS, root / "kernels" / "kernelmcp_kernel" / "_runtime" / "vega" / "node_modules"
    lock, target = views / "libraries-lock.json", views / "libraries"
    sources = [
        Path(__file__),
        lock,
        root / "kernels" / "vega-lock.json",
        *sorted((views / "source" / "drawing").iterdir()),
    ]
    wanted = hashlib.sha256(b"\0".join(file.read_bytes() for file in sources)).hexdigest()
    stamp = target / "stamp"
    if stamp.exists() and stamp.read_text("utf-8") == wanted:
        return
    interpreter = (vega / "vega-interpreter" / "build" / "vega-interpreter.js").read_text("utf-8")
    # Its import is a part of Vega, and its export is for our function.
    interpreter = re.sub(r"^import (\{.*\}) from 'vega-util';", r"const \1 = globalThis.vega;", interpreter)
    interpreter = re.sub(r"export \{ expression as (\w+) \};", r"globalThis.\1 = expression;", interpreter)
    scripts = [(vega / name / "build" / f"{name}.min.js").read_text("utf-8") for name in ("vega", "vega-lite")]
    with tempfile.TemporaryDirectory(prefix="kernelmcp-npm-") as scratch:
        packages = npm_files(Path(scratch), lock)
        shutil.rmtree(target, ignore_errors=True)  # of another version; what there is stays until all the new is here
        target.mkdir(exist_ok=True)
        _write(target / "vega.js.gz", [*scripts, f"(() => {{{interpreter}}})();"], views)
        for name, files in MADE_OF.items():
            _write(target / f"{name}.js.gz", [(packages / file).read_text("utf-8") for file in files], views)
        for package in packages.iterdir():
            shutil.copyfile(package / "LICENSE", target / f"{package.name}.LICENSE")
    stamp.write_text(wanted, "utf-8")


def _write(file: Path, scripts: list[str], views: Path) -> None:
    show = views / "source" / "drawing" / file.name.removesuffix(".gz")
    text = "\n".join([*scripts, show.read_text("utf-8")])
    file.write_bytes(gzip.compress(text.encode(), mtime=0))
