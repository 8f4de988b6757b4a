"""The files under deploy/ agree with each other, with the server and with its settings. No cluster is asked."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from starlette.applications import Starlette
from starlette.routing import Route

from kernelmcp.config.load import load
from kernelmcp.config.models import ServerSection
from kernelmcp.config.settings import Settings
from kernelmcp.http.asgi import Web
from kernelmcp.http.metrics import STATES, Metrics
from kernelmcp.http.rate_limits import Throttle

from .manifests import AGENT_SANDBOX, CLAIMED, DEPLOY, EGRESS, INGRESS, POD, load_all, pod_of

KUBERNETES = DEPLOY / "kubernetes"
LISTED = load_all(KUBERNETES / "kustomization.yaml")[0]["resources"]
MANIFESTS = [manifest for file in LISTED for manifest in load_all(KUBERNETES / file)]
SANDBOXES = [manifest for file in sorted(AGENT_SANDBOX.glob("*.yaml")) for manifest in load_all(file)]
PODS = {
    f"{manifest['kind']} {manifest['metadata']['name']}": pod_of(manifest)
    for manifest in [*MANIFESTS, *SANDBOXES]
    if manifest["kind"] in {"StatefulSet", "Deployment", "Sandbox", "SandboxTemplate"}
}
SERVERS = {name: pod for name, pod in PODS.items() if pod["containers"][0]["name"] == "kernelmcp"}
# The server ends this much later than `drain_seconds` at the latest (docs/deployment.md).
END_SECONDS = 6
MAX_PODS = 8


def named(kind: str, name: str) -> dict[str, Any]:
    [found] = [one for one in MANIFESTS if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def settings_of(pod: dict[str, Any], home: Path) -> Settings:
    """What the server reads from the variables of its container. Raises for one that is no setting."""
    values = {
        one["name"]: one.get("value", f"of-{one['name'].lower().replace('_', '-')}"[:24])
        for one in pod["containers"][0]["env"]
    }
    expanded = {
        name: re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], value)
        for name, value in values.items()
        if name.startswith("KERNELMCP_")
    }
    return load(environ={**expanded, "KERNELMCP_HOME": str(home)})


def test_there_is_a_pod_of_each_kind() -> None:
    assert sorted(PODS) == [
        "Deployment kernelmcp-balancer",
        "Sandbox alice",
        "SandboxTemplate kernelmcp",
        "StatefulSet kernelmcp",
    ]
    assert len(SERVERS) == 3


@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_only_known_fields(name: str) -> None:
    Draft202012Validator(POD).validate(PODS[name])


@pytest.mark.parametrize("name", PODS)
def test_every_container_is_restricted(name: str) -> None:
    pod = PODS[name]
    assert pod["automountServiceAccountToken"] is pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("name", SERVERS)
def test_the_user_is_that_of_the_image(name: str) -> None:
    assert f"USER {SERVERS[name]['securityContext']['runAsUser']}\n" in (DEPLOY / "Dockerfile").read_text()


def test_process_1_of_the_image_reaps_what_kernels_leave() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    [entrypoint] = re.findall(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE)
    [installed] = re.findall(r"^RUN apt-get .* install .*-recommends ([\w -]+) &&", dockerfile, re.MULTILINE)
    assert json.loads(entrypoint) == [installed, "--"] == ["tini", "--"]
    assert not [name for name in SERVERS if "command" in SERVERS[name]["containers"][0]], "it replaces the entrypoint"


@pytest.mark.parametrize("name", PODS)
def test_every_mount_has_a_volume(name: str) -> None:
    [manifest] = [one for one in [*MANIFESTS, *SANDBOXES] if f"{one['kind']} {one['metadata']['name']}" == name]
    claimed = {one["metadata"]["name"] for one in manifest["spec"].get("volumeClaimTemplates", [])}
    volumes = {volume["name"] for volume in PODS[name].get("volumes", [])} | claimed
    assert {mount["name"] for one in PODS[name]["containers"] for mount in one["volumeMounts"]} == volumes


@pytest.mark.parametrize("name", SERVERS)
def test_the_server_takes_its_variables_and_writes_only_to_volumes(name: str, tmp_path: Path) -> None:
    pod = SERVERS[name]
    settings = settings_of(pod, tmp_path)
    assert settings.policy.required_layers == ["no_new_privs", "landlock", "seccomp"]
    assert settings.config.server.runtime is not None
    mounts = {mount["mountPath"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    home = next(one["value"] for one in pod["containers"][0]["env"] if one["name"] == "KERNELMCP_HOME")
    for folder in (Path(home), settings.config.server.runtime):
        assert str(folder.parent) in mounts  # a folder in it, since the top belongs to root
    assert "/tmp" in mounts
    if (file := settings.config.auth.tokens_file) is not None:
        assert mounts[str(file.parent)]["readOnly"]
    assert settings.config.transport_http.insecure == (settings.config.auth.tokens_file is None)


@pytest.mark.parametrize("name", SERVERS)
def test_probes_ask_for_routes_of_the_server(name: str) -> None:
    [container] = SERVERS[name]["containers"]
    assert {probe: container[probe]["httpGet"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")} == {
        "startupProbe": {"path": "/ready", "port": "http"},
        "readinessProbe": {"path": "/ready", "port": "http"},
        "livenessProbe": {"path": "/health", "port": "http"},
    }
    settings = load(environ={})
    routes = {route.path for route in Web(settings, no_lifespan).asgi.routes if isinstance(route, Route)}
    assert {"/ready", "/health"} <= routes
    assert container["ports"] == [{"name": "http", "containerPort": settings.config.transport_http.port}]


@asynccontextmanager
async def no_lifespan(app: Starlette) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("name", SERVERS)
def test_the_grace_period_is_longer_than_the_drain(name: str, tmp_path: Path) -> None:
    drain = settings_of(SERVERS[name], tmp_path).config.transport_http.drain_seconds
    assert SERVERS[name]["terminationGracePeriodSeconds"] > drain + END_SECONDS


# -- several servers --------------------------------------------------------------------------------------------------


def test_the_slot_is_the_pods_name_and_is_valid() -> None:
    stateful = named("StatefulSet", "kernelmcp")
    [slot] = [one for one in pod_of(stateful)["containers"][0]["env"] if one["name"] == "KERNELMCP_SERVER__SLOT"]
    assert slot["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    for number in (0, MAX_PODS - 1):
        name = f"{stateful['metadata']['name']}-{number}"
        assert ServerSection(slot=name).slot == name


def test_all_pods_share_one_home() -> None:
    [home] = [one for one in pod_of(named("StatefulSet", "kernelmcp"))["volumes"] if one["name"] == "home"]
    claim = named("PersistentVolumeClaim", home["persistentVolumeClaim"]["claimName"])
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    Draft202012Validator(CLAIMED).validate(claim["spec"])


def test_selectors_match_the_labels_of_pods() -> None:
    labels = {
        manifest["spec"]["template"]["metadata"]["labels"]["app"]: manifest["spec"]
        for manifest in MANIFESTS
        if manifest["kind"] in {"StatefulSet", "Deployment"}
    }
    assert {app: spec["selector"]["matchLabels"]["app"] for app, spec in labels.items()} == {one: one for one in labels}
    for manifest in MANIFESTS:
        spec = manifest.get("spec", {})
        if manifest["kind"] == "Service":
            assert spec["selector"]["app"] in labels
            [port] = spec["ports"]
            assert port["targetPort"] in {one["name"] for one in _ports(labels[spec["selector"]["app"]])}
        elif manifest["kind"] == "PodDisruptionBudget":
            assert spec["selector"]["matchLabels"]["app"] in labels
        elif manifest["kind"] == "NetworkPolicy":
            assert spec["podSelector"]["matchLabels"]["app"] in labels
    kinds = Counter(manifest["kind"] for manifest in MANIFESTS)
    assert {kind: kinds[kind] for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy")} == {
        "Service": 2,
        "PodDisruptionBudget": 2,
        "NetworkPolicy": 2,
    }


def _ports(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return spec["template"]["spec"]["containers"][0]["ports"]


def test_the_servers_are_reached_by_the_balancer_and_reach_only_dns() -> None:
    policy = named("NetworkPolicy", "kernelmcp")["spec"]
    Draft202012Validator(INGRESS).validate(policy["ingress"])
    Draft202012Validator(EGRESS).validate(policy["egress"])
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"][0]["from"] == [{"podSelector": {"matchLabels": {"app": "kernelmcp-balancer"}}}]
    assert all(rule["from"] for rule in policy["ingress"])
    assert [port["port"] for rule in policy["egress"] for port in rule["ports"]] == [53, 53]


def test_pods_are_added_by_a_metric_of_the_server_up_to_what_the_balancer_names(tmp_path: Path) -> None:
    spec = named("HorizontalPodAutoscaler", "kernelmcp")["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "kernelmcp"}
    assert (spec["minReplicas"], spec["maxReplicas"]) == (3, MAX_PODS)
    [metric] = [one["pods"]["metric"] for one in spec["metrics"]]
    settings = load(environ={"KERNELMCP_HOME": str(tmp_path)})
    gauge = vars(Metrics(Throttle(settings), lambda: 0))["_kernels"]
    assert (metric["name"], list(metric["selector"]["matchLabels"])) == (gauge._name, list(gauge._labelnames))
    assert metric["selector"]["matchLabels"]["state"] in STATES


def test_the_balancers_configuration_is_that_of_haproxy_cfg() -> None:
    alone, pods = (_without_names(file) for file in (DEPLOY / "haproxy.cfg", KUBERNETES / "haproxy.cfg"))
    added = ["  hard-stop-after 80s", "resolvers cluster", "  parse-resolv-conf", "  hold valid 5s"]
    assert [line for line in pods if line not in added] == alone
    grace = pod_of(named("Deployment", "kernelmcp-balancer"))["terminationGracePeriodSeconds"]
    assert grace > 80


def _without_names(file: Path) -> list[str]:
    """Without comments, and without what each of the two files says in its own way."""
    lines = [line.removesuffix(" resolvers cluster init-addr none") for line in file.read_text().splitlines()]
    return [line for line in lines if line and not re.match(r" *#|  (use-)?server ", line)]


@pytest.mark.parametrize(
    ("file", "slots"),
    [
        (DEPLOY / "haproxy.cfg", [f"s{number}" for number in (1, 2, 3)]),
        (KUBERNETES / "haproxy.cfg", [f"kernelmcp-{number}" for number in range(MAX_PODS)]),
    ],
)
def test_haproxy_routes_by_the_slot_of_each_server(file: Path, slots: list[str]) -> None:
    text = file.read_text()
    for slot in slots:
        assert f"  use-server {slot} if {{ var(txn.id) -m beg {slot}. {slot}- }}\n" in text
    assert re.findall(r"^  server (\S+)", text, re.MULTILINE) == slots
    pods = named("Service", "kernelmcp-pods")["metadata"]["name"]
    addresses = re.findall(r'^  server (\S+) "\1\.(\S+?)\.\$', text, re.MULTILINE)
    assert addresses == ([(slot, pods) for slot in slots] if file.parent == KUBERNETES else [])


def test_the_balancer_waits_longer_than_the_server(tmp_path: Path) -> None:
    section = load(environ={"KERNELMCP_HOME": str(tmp_path)}).config.transport_http
    for file in (DEPLOY / "haproxy.cfg", KUBERNETES / "haproxy.cfg"):
        [seconds] = re.findall(r"^  timeout server (\d+)s$", file.read_text(), re.MULTILINE)
        assert int(seconds) > section.request_timeout_seconds


# -- Envoy ------------------------------------------------------------------------------------------------------------

ENVOY = yaml.safe_load((DEPLOY / "envoy.yaml").read_text())["static_resources"]


def _envoy_host() -> dict[str, Any]:
    [listener] = ENVOY["listeners"]
    [connection_manager] = listener["filter_chains"][0]["filters"]
    [host] = connection_manager["typed_config"]["route_config"]["virtual_hosts"]
    return host


def test_every_cluster_of_envoy_exists_and_is_used() -> None:
    names = [cluster["name"] for cluster in ENVOY["clusters"]]
    assert len(set(names)) == len(names)
    behind = [one["cluster_type"]["typed_config"]["clusters"] for one in ENVOY["clusters"] if "cluster_type" in one]
    used = {route["route"]["cluster"] for route in _envoy_host()["routes"]} | set(chain(*behind))
    assert used == set(names)
    assert all(clusters[-1] == "servers" for clusters in behind)
    for cluster in ENVOY["clusters"]:
        if "load_assignment" in cluster:
            assert cluster["load_assignment"]["cluster_name"] == cluster["name"]
            [check] = cluster["health_checks"]
            assert check["http_health_check"] == {"path": "/ready", "host": "localhost"}


def test_envoy_routes_by_the_slot_of_each_server() -> None:
    found = {
        tuple((header["name"], header["string_match"]["prefix"]) for header in headers): route["route"]["cluster"]
        for route in _envoy_host()["routes"]
        if (headers := route["match"].get("headers")) and "prefix" in headers[0]["string_match"]
    }
    expected: dict[tuple[tuple[str, str], ...], str] = {}
    for slot in ("s1", "s2", "s3"):
        expected |= {
            (("mcp-param-session", f"{slot}."),): f"{slot}-first",
            (("mcp-param-execution", f"{slot}-"),): f"{slot}-first",
            (("mcp-method", "tasks/"), ("mcp-name", f"{slot}-")): f"{slot}-first",
            (("mcp-name", f"kernelmcp://sessions/{slot}."),): f"{slot}-first",
            (("mcp-name", f"kernelmcp://executions/{slot}-"),): f"{slot}-first",
        }
    assert found == expected
    assert _envoy_host()["routes"][-1]["match"] == {"prefix": "/"}


def test_no_deployment_file_names_a_registry() -> None:
    files = [file for file in DEPLOY.rglob("*") if file.is_file()]
    images = [
        image for file in files for image in re.findall(r"^\s*(?:FROM|(?:- )?image:) (\S+)", file.read_text(), re.M)
    ]
    assert len(images) >= 5
    assert [image for image in images if "/" in image] == []
