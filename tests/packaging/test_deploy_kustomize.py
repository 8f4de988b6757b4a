"""deploy/kubernetes as `kubectl kustomize` builds it, which asks no cluster."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from .manifests import DEPLOY

KUBECTL = shutil.which("kubectl")
BASE = DEPLOY / "kubernetes"
HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    assert KUBECTL is not None
    home = {"HOME": str(tmp_path_factory.mktemp("home")), "PATH": os.environ["PATH"]}
    done = subprocess.run([KUBECTL, "kustomize", BASE], capture_output=True, text=True, timeout=120, env=home)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_every_file_is_part_of_the_base(built: list[dict[str, Any]]) -> None:
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    assert {file.name for file in BASE.glob("*.yaml")} == {*listed, "kustomization.yaml"}
    namespaces = {one["metadata"].get("namespace") for one in built if one["kind"] != "Namespace"}
    assert namespaces == {one["metadata"]["name"] for one in built if one["kind"] == "Namespace"} == {"kernelmcp"}


def test_the_balancer_mounts_the_configuration_that_was_built(built: list[dict[str, Any]]) -> None:
    [made] = [one for one in built if one["kind"] == "ConfigMap"]
    assert made["data"] == {"haproxy.cfg": (BASE / "haproxy.cfg").read_text()}
    [balancer] = [one for one in built if one["kind"] == "Deployment"]
    pod = balancer["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "configuration", "configMap": {"name": made["metadata"]["name"]}}]
    [container] = pod["containers"]
    [mount] = container["volumeMounts"]
    assert container["args"][-1] == f"{mount['mountPath']}/haproxy.cfg"


@pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")
def test_haproxy_takes_that_configuration(built: list[dict[str, Any]], tmp_path: Path) -> None:
    assert HAPROXY is not None
    [made] = [one for one in built if one["kind"] == "ConfigMap"]
    [balancer] = [one for one in built if one["kind"] == "Deployment"]
    file = tmp_path / "haproxy.cfg"
    file.write_text(made["data"]["haproxy.cfg"])
    variables = {one["name"]: "kernelmcp" for one in balancer["spec"]["template"]["spec"]["containers"][0]["env"]}
    done = subprocess.run([HAPROXY, "-c", "-f", file], capture_output=True, text=True, timeout=60, env=variables)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"\$\{(\w+)\}", file.read_text())) == set(variables)
