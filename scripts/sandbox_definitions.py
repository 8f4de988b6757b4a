"""Compares deploy/ with agent-sandbox's own resource definitions: argument, the folder `k8s/crds` of its repository.

The tests check the manifests against shapes written for them (tests/packaging/manifests.py). This checks both against
the real definitions, and, because those contain the whole PodSpec, the pods of deploy/kubernetes as well.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.packaging.manifests import AGENT_SANDBOX, DEPLOY, SANDBOX_SPECS, Schema, load_all, pod_of


def definitions(folder: Path) -> dict[tuple[str, str], Schema]:
    """The `spec` of each kind and version, as its definition has it; unknown fields are refused."""
    found: dict[tuple[str, str], Schema] = {}
    for file in sorted(folder.glob("*.yaml")):
        spec = yaml.safe_load(file.read_text())["spec"]
        for version in spec["versions"]:
            schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
            found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = refuse_unknown(schema)
    return found


def refuse_unknown(schema: Any) -> Any:
    if isinstance(schema, list):
        return [refuse_unknown(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    done = {key: refuse_unknown(value) for key, value in schema.items()}
    if done.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if done.get("type") == "object" and "properties" in done:
        done.setdefault("additionalProperties", False)
    return done


def differing(ours: Schema, theirs: Schema, path: str) -> Iterator[str]:
    """Paths of fields and choices in `ours` that `theirs` does not have."""
    if not set(ours.get("enum", [])) <= set(theirs.get("enum", ours.get("enum", []))):
        yield path
    if "items" in ours:
        yield from differing(ours["items"], theirs["items"], f"{path}[]")
    fields = theirs.get("properties", {})
    for name, shape in ours.get("properties", {}).items():
        if name in fields:
            yield from differing(shape, fields[name], f"{path}.{name}")
        elif not isinstance(theirs.get("additionalProperties"), dict):
            yield f"{path}.{name}"


def problems(known: dict[tuple[str, str], Schema]) -> Iterator[str]:
    for file in sorted(AGENT_SANDBOX.glob("*.yaml")):
        for manifest in load_all(file):
            schema = known[manifest["apiVersion"], manifest["kind"]]
            for error in Draft202012Validator(schema).iter_errors(manifest["spec"]):
                yield f"{file.name}: {manifest['kind']}: {error.message}"
    pod = known["agents.x-k8s.io/v1beta1", "Sandbox"]["properties"]["podTemplate"]["properties"]["spec"]
    for name in ("kernelmcp.yaml", "balancer.yaml"):
        for manifest in load_all(DEPLOY / "kubernetes" / name):
            if manifest["kind"] in {"StatefulSet", "Deployment"}:
                for error in Draft202012Validator(pod).iter_errors(pod_of(manifest)):
                    yield f"{name}: {manifest['kind']}: {error.message}"
    for kind, shape in SANDBOX_SPECS.items():
        for path in differing(shape, known[kind], kind[1]):
            yield f"tests/packaging/manifests.py: {path} is not in the definition"


def main() -> int:
    if len(sys.argv) != 2 or not (known := definitions(Path(sys.argv[1]))):
        print(f"usage: {sys.argv[0]} FOLDER, with agent-sandbox's k8s/crds/*.yaml", file=sys.stderr)
        return 2
    found = list(problems(known))
    print("\n".join(found) or f"the manifests fit {len(known)} definitions")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
