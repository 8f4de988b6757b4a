"""Writes what npm packages of charts contain of other packages, and their licenses: kernels/licenses/.

Run it after a change of Vega's or Plotly's version; it needs npm's registry. No lock file of ours names these parts:
they are in the files that the packages' own builds made. Plotly's says in comments which packages it has; Vega's has
the packages that Vega depends on, without those of its commands. Their exact versions are not known.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from kernelmcp_kernel.runtime.npm import _run_npm

LICENSES = Path(__file__).resolve().parent.parent / "kernels" / "licenses"
VEGA = ("vega", "vega-lite")
# Of Vega's dependencies: they are for its commands and for types.
NOT_BUNDLED = {"commander", "iconv-lite", "rw", "vega-typings", "yargs"}
# Plotly's bundle has browserify's stand-ins for modules of Node, which its package does not name.
STAND_INS = ["assert@2", "buffer@6", "events", "readable-stream@3", "stream-browserify@3", "util"]
# A subfolder of a package that looks like one in the comments.
PATHS = {"stream-parser": "probe-image-size"}


def main() -> None:
    parts = json.loads((LICENSES / "parts.json").read_text("utf-8"))
    with tempfile.TemporaryDirectory(prefix="kernelmcp-parts-") as scratch:
        version = parts["plotly.js-cartesian-dist-min"]["version"]
        modules = _installed(Path(scratch, "plotly"), f"plotly.js@{version}", *STAND_INS)
        script = (modules / "plotly.js" / "dist" / "plotly-cartesian.js").read_text("utf-8")
        found = set(re.findall(r"^\s*// \S*node_modules/((?:@[^/]+/)?[^/]+)/", script, re.MULTILINE))
        names = sorted({PATHS.get(name, name) for name in found})
        parts["plotly.js-cartesian-dist-min"]["parts"] = _parts(modules, names, "plotly.txt")
        modules = _installed(Path(scratch, "vega"), *(f"{name}@{parts[name]['version']}" for name in VEGA))
        for name in VEGA:
            names = sorted(_below(modules, name) - {*VEGA, "vega-util"})  # vega-lock.json has these
            parts[name]["parts"] = _parts(modules, names, f"{name}.txt")
    (LICENSES / "parts.json").write_text(json.dumps(parts, indent=1) + "\n", "utf-8")


def _installed(folder: Path, *packages: str) -> Path:
    """The path of node_modules."""
    folder.mkdir()
    (folder / "package.json").write_text('{"name": "parts", "version": "0.0.0"}')
    _run_npm(folder, "install", "--no-audit", "--no-fund", *packages)
    return folder / "node_modules"


def _package(modules: Path, name: str) -> dict[str, Any]:
    return json.loads((modules / name / "package.json").read_text("utf-8"))


def _below(modules: Path, name: str) -> set[str]:
    """What a package depends on, and so on. Without what has another scope: types."""
    found: set[str] = set()
    pending = [name]
    while pending:
        for other in _package(modules, pending.pop()).get("dependencies", {}):
            if other not in found | NOT_BUNDLED and not other.startswith("@types/"):
                found.add(other)
                pending.append(other)
    return found


def _parts(modules: Path, names: list[str], file: str) -> list[dict[str, str]]:
    """The entries of these packages; their texts are written to `file`, each once."""
    texts: dict[str, list[str]] = {}
    entries: list[dict[str, str]] = []
    for name in names:
        package = _package(modules, name)
        found = sorted(each for each in (modules / name).iterdir() if re.match("(?i)licen[cs]e", each.name))
        text = found[0].read_text("utf-8") if found else _license_of_the_readme(modules / name, package)
        tidy = "\n".join(line.rstrip() for line in text.expandtabs(4).splitlines()).strip()
        texts.setdefault(tidy, []).append(name)
        license_id = package.get("license", "MIT")
        entries.append(
            {"name": name, "license": license_id, "text": file, "purl": f"pkg:npm/{name.replace('@', '%40')}"}
        )
    sections = [f"{', '.join(names)}\n\n{text}" for text, names in texts.items()]
    (LICENSES / file).write_text(f"\n\n{'-' * 80}\n\n".join(sections) + "\n", "utf-8")
    return entries


def _license_of_the_readme(package: Path, described: dict[str, Any]) -> str:
    """Some say it there only, or in package.json alone."""
    author = described.get("author", "")
    holder = author.get("name", "") if isinstance(author, dict) else author
    for readme in package.glob("[Rr][Ee][Aa][Dd][Mm][Ee]*"):
        if found := re.search(r"(?ims)^#+\s*licen[cs]e\b.*", readme.read_text("utf-8")):
            return f"{holder}\n\n{found[0].strip()}"
    return f"License: {described.get('license', 'MIT')}. Copyright (c) {holder}"


if __name__ == "__main__":
    main()
