"""deploy/agent-sandbox, as the API server and the official client see it.

The official client (`k8s-agent-sandbox`, 165 MB, not among the test dependencies) is installed for its tests, once for
a machine, and runs against a small API server. `scripts/sandbox_definitions` compares the manifests, and the shapes of
manifests.py, with agent-sandbox's own resource definitions.
"""

from __future__ import annotations

import copy
import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from jsonschema import Draft202012Validator, ValidationError

from ..kept import kept
from .manifests import AGENT_SANDBOX, SANDBOX_SPECS, Schema, an_object, load_all, pod_of

CLIENT = "k8s-agent-sandbox>=1.0.8,<2"
INSTALL_SECONDS = 600
MANIFESTS = [manifest for file in sorted(AGENT_SANDBOX.glob("*.yaml")) for manifest in load_all(file)]


def kind_of(manifest: dict[str, Any]) -> tuple[str, str]:
    return manifest["apiVersion"], manifest["kind"]


def only(kind: str) -> dict[str, Any]:
    [found] = [one for one in MANIFESTS if one["kind"] == kind]
    return found


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: one["kind"])
def test_a_manifest_has_only_known_fields(manifest: dict[str, Any]) -> None:
    Draft202012Validator(SANDBOX_SPECS[kind_of(manifest)]).validate(manifest["spec"])


def test_a_misspelled_field_is_refused() -> None:
    sandbox = copy.deepcopy(only("Sandbox"))
    sandbox["spec"]["operatingmode"] = sandbox["spec"].pop("operatingMode")
    with pytest.raises(ValidationError):
        Draft202012Validator(SANDBOX_SPECS[kind_of(sandbox)]).validate(sandbox["spec"])


def test_the_claim_names_the_pool_and_the_pool_the_template() -> None:
    pool, template = only("SandboxWarmPool"), only("SandboxTemplate")
    assert only("SandboxClaim")["spec"]["warmPoolRef"]["name"] == pool["metadata"]["name"]
    assert pool["spec"]["sandboxTemplateRef"]["name"] == template["metadata"]["name"]


def test_the_home_survives_the_pod() -> None:
    for kind in ("Sandbox", "SandboxTemplate"):
        manifest = only(kind)
        [claim] = manifest["spec"]["volumeClaimTemplates"]
        [container] = pod_of(manifest)["containers"]
        [path] = [one["mountPath"] for one in container["volumeMounts"] if one["name"] == claim["metadata"]["name"]]
        [home] = [one["value"] for one in container["env"] if one["name"] == "KERNELMCP_HOME"]
        assert home.startswith(f"{path}/")


def test_a_server_without_a_token_is_reached_by_the_router_only() -> None:
    spec = only("SandboxTemplate")["spec"]
    assert spec["networkPolicyManagement"] == "Managed"
    assert spec["networkPolicy"]["ingress"] == [
        {
            "from": [
                {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "agent-sandbox-system"}},
                    "podSelector": {"matchLabels": {"app": "sandbox-router"}},
                }
            ],
            "ports": [{"protocol": "TCP", "port": 8000}],
        }
    ]
    assert "egress" not in spec["networkPolicy"]
    insecure = {
        manifest["kind"]: any(one["name"].endswith("__INSECURE") for one in pod_of(manifest)["containers"][0]["env"])
        for manifest in (only("Sandbox"), only("SandboxTemplate"))
    }
    assert insecure == {"Sandbox": False, "SandboxTemplate": True}


# -- with the official client -----------------------------------------------------------------------------------------

# What a client may put into a claim, beside what our own claim has.
CLAIM_OF_A_CLIENT: Schema = an_object(
    "warmPoolRef",
    warmPoolRef=an_object("name", name={"type": "string"}),
    lifecycle=an_object(
        shutdownTime={"type": "string"}, shutdownPolicy={"enum": ["Delete", "DeleteForeground", "Retain"]}
    ),
)


@dataclass
class Cluster:
    """An API server, a controller and a router in one: checks what it gets, and gives a claim a sandbox at once."""

    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict[tuple[str, str], dict[str, Any]])
    port: int = 0
    routed: dict[str, str] = field(default_factory=dict[str, str])

    def create(self, plural: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        schema = CLAIM_OF_A_CLIENT if plural == "sandboxclaims" else SANDBOX_SPECS[kind_of(body)]
        if errors := [error.message for error in Draft202012Validator(schema).iter_errors(body["spec"])]:
            return 422, {"kind": "Status", "message": "; ".join(errors)}
        name = body["metadata"]["name"]
        self.objects[plural, name] = body
        body["metadata"] |= {"uid": f"uid-of-{name}", "resourceVersion": "1"}
        if plural == "sandboxclaims":
            self._bind(body)
        return 201, body

    def _bind(self, claim: dict[str, Any]) -> None:
        if claim["spec"]["warmPoolRef"]["name"] != only("SandboxWarmPool")["metadata"]["name"]:
            claim["status"] = {"conditions": [{"type": "Ready", "status": "False", "reason": "WarmPoolNotFound"}]}
            return
        template = copy.deepcopy(only("SandboxTemplate")["spec"])
        spec = {key: template[key] for key in ("podTemplate", "volumeClaimTemplates", "service")}
        name = f"{claim['spec']['warmPoolRef']['name']}-abcde"
        made = {
            "apiVersion": "agents.x-k8s.io/v1beta1",
            "kind": "Sandbox",
            "metadata": {"name": name},
            "spec": {"operatingMode": "Running", **spec},
        }
        assert self.create("sandboxes", made)[0] == 201
        ready = [{"type": "Ready", "status": "True", "reason": "DependenciesReady"}]
        made["status"] = {"conditions": ready, "podIPs": ["10.1.2.3"]}
        claim["status"] = {"conditions": ready, "sandbox": {"name": name, "podIPs": ["10.1.2.3"]}}

    def patch(self, plural: str, name: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        changed = copy.deepcopy(self.objects[plural, name])
        changed["spec"] |= body["spec"]
        errors = list(Draft202012Validator(SANDBOX_SPECS[kind_of(changed)]).iter_errors(changed["spec"]))
        if errors:
            return 422, {"kind": "Status", "message": errors[0].message}
        self.objects[plural, name] = changed
        return 200, changed


class Handler(BaseHTTPRequestHandler):
    cluster: Cluster

    def do_POST(self) -> None:
        self._answer(*self.cluster.create(self._named()[0], self._body()))

    def do_PATCH(self) -> None:
        self._answer(*self.cluster.patch(*self._named(), self._body()))

    def do_GET(self) -> None:
        if self.path == "/ready":  # as the router, which would forward it to the pod
            self.cluster.routed = {name: value for name, value in self.headers.items() if name.startswith("X-Sandbox")}
            self._answer(200, {"ready": True})
            return
        plural, name = self._named()
        if not name:
            query = parse_qs(urlsplit(self.path).query)
            assert query["watch"] == ["true"]
            name = query["fieldSelector"][0].removeprefix("metadata.name=")
            self._answer(200, {"type": "ADDED", "object": self.cluster.objects[plural, name]})
        elif (plural, name) in self.cluster.objects:
            self._answer(200, self.cluster.objects[plural, name])
        else:
            self._answer(404, {"kind": "Status"})

    def do_DELETE(self) -> None:
        del self.cluster.objects[self._named()]
        self._answer(200, {"kind": "Status"})

    def _named(self) -> tuple[str, str]:
        """The plural, and the name or nothing: /apis/GROUP/VERSION/namespaces/NAMESPACE/PLURAL/NAME."""
        parts = urlsplit(self.path).path.strip("/").split("/")
        assert parts[0] == "apis"
        assert parts[2:4] == ["v1beta1", "namespaces"]
        return parts[5], parts[6] if len(parts) > 6 else ""

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["content-length"])))

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"cluster": made}))
    made.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    yield made
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def installed() -> Iterator[None]:
    """The official client can be imported."""

    def fill(folder: Path) -> None:
        install = [sys.executable, "-m", "uv", "--quiet", "pip", "install", "--python", sys.executable]
        subprocess.run([*install, "--target", folder, CLIENT], check=True, timeout=INSTALL_SECONDS)

    folder = kept(f"{CLIENT}-{sys.implementation.cache_tag}", fill)
    sys.path.append(str(folder))  # behind what is here already
    yield
    sys.path.remove(str(folder))


def official_client(cluster: Cluster) -> tuple[Any, Any]:
    """The client of agent-sandbox, and the ApiClient that it uses."""
    kubernetes = importlib.import_module("kubernetes.client")
    sandboxes = importlib.import_module("k8s_agent_sandbox")
    models = importlib.import_module("k8s_agent_sandbox.models")
    settings = kubernetes.Configuration(host=f"http://127.0.0.1:{cluster.port}")
    api = kubernetes.ApiClient(settings)
    route = models.SandboxDirectConnectionConfig(api_url=f"http://127.0.0.1:{cluster.port}", server_port=8000)
    return sandboxes.SandboxClient(connection_config=route, api_client=api), api


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_the_official_client_claims_suspends_and_resumes_a_sandbox(cluster: Cluster) -> None:
    client, api = official_client(cluster)
    sandbox = client.create_sandbox(warmpool="kernelmcp", claim_name="alice", sandbox_ready_timeout=30)
    assert sandbox.sandbox_id == "kernelmcp-abcde"
    assert sandbox.connector.send_request("GET", "ready").json() == {"ready": True}
    port = str(pod_of(only("SandboxTemplate"))["containers"][0]["ports"][0]["containerPort"])
    named = {"X-Sandbox-ID": sandbox.sandbox_id, "X-Sandbox-Namespace": "default", "X-Sandbox-Port": port}
    assert named.items() <= cluster.routed.items()
    custom = importlib.import_module("kubernetes.client").CustomObjectsApi(api)
    where = {"group": "agents.x-k8s.io", "version": "v1beta1", "namespace": "default", "plural": "sandboxes"}
    for mode in ("Suspended", "Running"):
        custom.patch_namespaced_custom_object(**where, name=sandbox.sandbox_id, body={"spec": {"operatingMode": mode}})
        found = custom.get_namespaced_custom_object(**where, name=sandbox.sandbox_id)
        assert found["spec"]["operatingMode"] == mode
        assert found["spec"]["volumeClaimTemplates"] == only("SandboxTemplate")["spec"]["volumeClaimTemplates"]
    assert client.get_sandbox("alice").sandbox_id == sandbox.sandbox_id
    client.delete_sandbox("alice")
    assert ("sandboxclaims", "alice") not in cluster.objects


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_claim_with_variables_is_refused_as_the_template_says(cluster: Cluster) -> None:
    client, _ = official_client(cluster)
    refused = importlib.import_module("kubernetes.client").ApiException
    with pytest.raises(refused) as caught:
        client.create_sandbox(warmpool="kernelmcp", claim_name="alice", env={"KERNELMCP_HOME": "/elsewhere"})
    assert caught.value.status == 422
