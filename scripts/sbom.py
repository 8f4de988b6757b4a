"""Prints the SBOM (CycloneDX) of the wheel that this source tree makes: what is in it of others, and what it needs.

The wheel has it in its `.dist-info/sboms/` (PEP 770; hatch_build.py). Facts come from where they are already: the lock
files, the metadata of the packages, pyproject.toml. kernels/licenses/parts.json adds what these do not know: the parts
of files that others built, and licenses that a package does not state as SPDX. It needs a built runtime.

Nothing but the standard library and what hatchling brings: it runs in the build's environment.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
Json = dict[str, Any]
# The runtime and the guest of JavaScript, as the wheel names their places.
RUNTIME, JAVASCRIPT = "kernelmcp_kernel/_runtime", "kernelmcp_kernel/languages/javascript/node_modules"
LIBRARIES = "kernelmcp/mcp_server/views/libraries"
BUNDLE = f"{JAVASCRIPT}/kernelmcp-bundle"
# Extras that are for a kernelmcp that is installed; `test` is for its development.
EXTRAS = ("lab", "otel", "wheel-build")
# Files of the build, and the packages (by their place) whose code is in them.
MADE = {
    f"{RUNTIME}/boot.img": (f"{RUNTIME}/pyodide", f"{RUNTIME}/site"),
    f"{RUNTIME}/boot.js": (f"{RUNTIME}/pyodide",),
    f"{RUNTIME}/boot.code": (f"{RUNTIME}/pyodide",),
    f"{RUNTIME}/boot.native": (f"{RUNTIME}/pyodide",),
    f"{BUNDLE}/javascript_guest.mjs": (JAVASCRIPT,),
    f"{BUNDLE}/emscripten-module.wasm": (f"{JAVASCRIPT}/@jitl",),
    f"{LIBRARIES}/vega.js.gz": (f"{RUNTIME}/vega",),
    f"{LIBRARIES}/plotly.js.gz": (f"{LIBRARIES}/plotly.js-cartesian-dist-min.LICENSE",),
    f"{LIBRARIES}/markup.js.gz": (f"{LIBRARIES}/marked.LICENSE", f"{LIBRARIES}/katex.LICENSE"),
}


class SbomError(Exception):
    """Something bundled has no license, or is another version than parts.json describes."""


def sbom(root: Path, version: str) -> Json:
    """The SBOM of the wheel of `version`; the same for the same wheel. Raises SbomError."""
    tree = _Tree(root, version)
    bundled = list(tree.bundled())
    needed = list(tree.needed())
    made = [_made(root, path) for path in MADE]
    own = f"pkg:pypi/kernelmcp@{version}"
    contents = [{"ref": each["bom-ref"], "dependsOn": _within(MADE[each["name"]], bundled)} for each in made]
    project = tree.project["project"]
    document: Json = {
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "build"}],
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": version,
                "description": project["description"],
                "purl": own,
                "licenses": [{"license": {"id": "MIT"}}],
            },
        },
        "components": [*bundled, *made, *needed],
        "dependencies": [
            {"ref": own, "dependsOn": sorted(each["bom-ref"] for each in (*bundled, *made, *needed))},
            *contents,
        ],
    }
    text = json.dumps(document, sort_keys=True)
    return {**document, "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, text).urn}


class _Tree:
    """A source tree with its runtime."""

    def __init__(self, root: Path, version: str) -> None:
        self.root, self.kernels = root, root / "kernels"
        self.known: Json = json.loads((self.kernels / "licenses" / "parts.json").read_text("utf-8"))
        self.texts = f"kernelmcp-{version}.dist-info/licenses/kernels/licenses"
        self.project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))

    def bundled(self) -> Iterator[Json]:
        """What the wheel has of others, each with its license's text."""
        site = self.kernels / RUNTIME / "site"
        hashes = _hashes_of_pip((self.kernels / "requirements-guest.txt").read_text("utf-8"))
        for found in sorted(distributions(path=[str(site)]), key=lambda each: canonicalize_name(each.name)):
            yield self._of_python(found, hashes)
        lock = _npm_lock(self.kernels / "package-lock.json")
        yield self._of_npm("pyodide", lock["pyodide"], self.kernels, f"{RUNTIME}/pyodide")
        vega = json.loads((self.kernels / "vega-lock.json").read_text("utf-8"))
        for name, locked in vega.items():
            yield self._of_npm(name, locked, self.kernels, f"{RUNTIME}/vega/node_modules/{name}")
        for name, locked in _npm_lock(self.kernels / Path(JAVASCRIPT).parent / "package-lock.json").items():
            yield self._of_npm(name, locked, self.kernels, f"{JAVASCRIPT}/{name}")
        libraries = json.loads((self.root / LIBRARIES).with_name("libraries-lock.json").read_text("utf-8"))
        for name, locked in libraries.items():
            yield self._of_npm(name, locked, self.root, f"{LIBRARIES}/{name}.LICENSE")

    def _of_python(self, found: Distribution, hashes: dict[str, str]) -> Json:
        name = canonicalize_name(found.name)
        files = [str(file) for file in found.files or []]
        texts = [file for file in files if re.search(r"\.dist-info/(licenses/)?(?i:licen[cs]e)[^/]*$", file)]
        metadata: Json = dict(found.metadata.json)
        stated = metadata.get("license_expression") or self.known.get(name, {}).get("license")
        stated = stated or ("MIT" if metadata.get("license") == "MIT" else None)
        tops = sorted({file.split("/")[0] for file in files} - {"..", "__pycache__"})
        return self._component(
            name,
            found.version,
            f"pkg:pypi/{name}@{found.version}",
            stated,
            [f"{RUNTIME}/site/{text}" for text in texts],
            [f"{RUNTIME}/site/{top}" for top in tops],
            {"alg": "SHA-256", "content": hashes[name]},
        )

    def _of_npm(self, name: str, locked: Json, base: Path, place: str) -> Json:
        folder = base / place
        described = folder / "package.json"
        stated = json.loads(described.read_text("utf-8")).get("license") if described.exists() else None
        texts = [folder] if folder.is_file() else sorted(folder.glob("LICENSE*"))
        algorithm, _, digest = locked["integrity"].partition("-")
        assert algorithm == "sha512"
        return self._component(
            name,
            locked["version"],
            f"pkg:npm/{name.replace('@', '%40')}@{locked['version']}",
            stated or self.known.get(name, {}).get("license"),
            [text.relative_to(base).as_posix() for text in texts],
            [place],
            {"alg": "SHA-512", "content": base64.b64decode(digest).hex()},
        )

    def _component(
        self, name: str, version: str, purl: str, stated: str | None, texts: list[str], places: list[str], digest: Json
    ) -> Json:
        known = self.known.get(name, {})
        if known.get("version", version) != version:
            raise SbomError(
                f"kernels/licenses/parts.json describes {name} {known['version']}, and {version} is bundled"
            )
        if "text" in known:
            texts = [*texts, f"{self.texts}/{known['text']}"]
        if not stated or not texts:
            raise SbomError(f"{name} {version} has no license or no text of it: add it to kernels/licenses/parts.json")
        parts = [
            {
                "type": "library",
                "bom-ref": f"{purl}#{part['name']}",
                "name": part["name"],
                **({"version": part["version"]} if "version" in part else {}),
                "licenses": _licenses(part["license"]),
                "purl": part["purl"],
                "properties": _properties(license=[f"{self.texts}/{part['text']}"]),
            }
            for part in known.get("parts", [])
        ]
        return {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": version,
            "hashes": [digest],
            "licenses": _licenses(stated),
            "purl": purl,
            **({"components": parts} if parts else {}),
            "properties": _properties(path=places, license=texts),
        }

    def needed(self) -> Iterator[Json]:
        """What pip installs beside the wheel, by the declared bounds."""
        project = self.project["project"]
        declared = [("", text) for text in project["dependencies"]]
        declared += [(extra, text) for extra in EXTRAS for text in project["optional-dependencies"][extra]]
        for extra, text in sorted(declared):
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            yield {
                "type": "library",
                "bom-ref": f"needed:{extra}:{name}" if extra else f"needed:{name}",
                "name": name,
                "versionRange": _version_range(requirement),
                "isExternal": True,
                "scope": "optional" if extra else "required",
                "purl": f"pkg:pypi/{name}",
                "properties": _properties(
                    requirement=[text], extra=[extra] if extra else [], marker=[str(requirement.marker or "")]
                ),
            }


def _npm_lock(file: Path) -> dict[str, Json]:
    """The packages that are installed, without those of the build."""
    packages = json.loads(file.read_text("utf-8"))["packages"]
    return {name.removeprefix("node_modules/"): each for name, each in packages.items() if name and not each.get("dev")}


def _hashes_of_pip(requirements: str) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==\S+ \\\n\s+--hash=sha256:(\w+)$", requirements, re.MULTILINE)
    return {canonicalize_name(name): digest for name, digest in found}


def _licenses(stated: str) -> list[Json]:
    """An id is checked against SPDX's list, an expression is not."""
    return [{"expression": stated}] if " " in stated else [{"license": {"id": stated}}]


def _version_range(requirement: Requirement) -> str:
    """In the syntax of `vers`, ordered by version."""
    found = sorted(requirement.specifier, key=lambda each: Version(each.version))
    bounds = [f"{'' if each.operator == '==' else each.operator}{each.version}" for each in found]
    return f"vers:pypi/{'|'.join(bounds) or '*'}"


def _properties(**named: list[str]) -> list[dict[str, str]]:
    return [
        {"name": f"kernelmcp:{name}", "value": value} for name, values in named.items() for value in values if value
    ]


def _made(root: Path, path: str) -> Json:
    file = root / ("kernels" if path.startswith("kernelmcp_kernel/") else ".") / path
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"type": "file", "bom-ref": path, "name": path, "hashes": [{"alg": "SHA-256", "content": digest}]}


def _within(places: tuple[str, ...], components: list[Json]) -> list[str]:
    """The components that lie in one of these places."""
    return sorted(each["bom-ref"] for each in components if any(path.startswith(places) for path in _paths(each)))


def _paths(component: Json) -> list[str]:
    return [each["value"] for each in component["properties"] if each["name"] == "kernelmcp:path"]


def main() -> None:
    found = re.search(r'__version__ = "(.+)"', (ROOT / "kernelmcp" / "version.py").read_text("utf-8"))
    assert found
    sys.stdout.write(json.dumps(sbom(ROOT, found[1]), indent=1) + "\n")


if __name__ == "__main__":
    main()
