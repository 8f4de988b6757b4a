"""The Kubernetes manifests under deploy/, and the shapes of their parts that they use.

The shapes are written for this project from the documented fields, and name no field that deploy/ does not use: a
misspelled one is refused. test_deploy_agent_sandbox.py compares them with the real definitions where it has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
AGENT_SANDBOX = DEPLOY / "agent-sandbox"
Schema = dict[str, Any]


def load_all(file: Path) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(file.read_text()) if found]


def an_object(*required: str, **properties: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


def a_list(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


TEXT: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
QUANTITY: Schema = {"type": ["integer", "string"], "pattern": r"^[0-9]+(m|Mi|Gi)?$"}
LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
NAMED: Schema = an_object("name", name=TEXT)
SELECTOR: Schema = an_object("matchLabels", matchLabels=LABELS)
PEERS: Schema = a_list(an_object(podSelector=SELECTOR, namespaceSelector=SELECTOR))
PORTS: Schema = a_list(an_object("port", protocol={"enum": ["TCP", "UDP"]}, port={"type": ["integer", "string"]}))
INGRESS: Schema = a_list(an_object("ports", **{"from": PEERS, "ports": PORTS}))
EGRESS: Schema = a_list(an_object("to", "ports", to=PEERS, ports=PORTS))
PROBE: Schema = an_object(
    httpGet=an_object("path", "port", path=TEXT, port=TEXT),
    tcpSocket=an_object("port", port=TEXT),
    periodSeconds=COUNT,
    timeoutSeconds=COUNT,
    failureThreshold=COUNT,
)
FIELD: Schema = an_object("fieldRef", fieldRef=an_object("fieldPath", fieldPath=TEXT))
MOUNT: Schema = an_object("name", "mountPath", name=TEXT, mountPath=TEXT, readOnly=FLAG)
CONTAINER: Schema = an_object(
    "name",
    "image",
    "securityContext",
    "resources",
    name=TEXT,
    image=TEXT,
    args=a_list(TEXT),
    ports=a_list(an_object("name", "containerPort", name=TEXT, containerPort=COUNT)),
    env=a_list(an_object("name", name=TEXT, value={"type": "string"}, valueFrom=FIELD)),
    startupProbe=PROBE,
    readinessProbe=PROBE,
    livenessProbe=PROBE,
    resources=an_object(
        "requests",
        "limits",
        requests=an_object(cpu=QUANTITY, memory=QUANTITY),
        limits=an_object("memory", memory=QUANTITY),
    ),
    securityContext=an_object(
        allowPrivilegeEscalation=FLAG,
        readOnlyRootFilesystem=FLAG,
        capabilities=an_object("drop", drop=a_list(TEXT)),
    ),
    volumeMounts=a_list(MOUNT),
)
VOLUME: Schema = an_object(
    "name",
    name=TEXT,
    emptyDir=an_object(medium=TEXT, sizeLimit=QUANTITY),
    secret=an_object("secretName", secretName=TEXT),
    configMap=NAMED,
    persistentVolumeClaim=an_object("claimName", claimName=TEXT),
)
SPREAD: Schema = an_object(maxSkew=COUNT, topologyKey=TEXT, whenUnsatisfiable=TEXT, labelSelector=SELECTOR)
POD: Schema = an_object(
    "containers",
    "securityContext",
    "terminationGracePeriodSeconds",
    automountServiceAccountToken=FLAG,
    enableServiceLinks=FLAG,
    terminationGracePeriodSeconds=COUNT,
    topologySpreadConstraints=a_list(SPREAD),
    securityContext=an_object(
        runAsNonRoot=FLAG,
        runAsUser=COUNT,
        runAsGroup=COUNT,
        fsGroup=COUNT,
        fsGroupChangePolicy=TEXT,
        seccompProfile=an_object("type", type=TEXT),
    ),
    containers=a_list(CONTAINER),
    volumes=a_list(VOLUME),
)
CLAIMED: Schema = an_object(
    "accessModes",
    "resources",
    accessModes=a_list({"enum": ["ReadWriteOnce", "ReadWriteMany"]}),
    resources=an_object("requests", requests=an_object("storage", storage=QUANTITY)),
)
BLUEPRINT: dict[str, Schema] = {
    "podTemplate": an_object("spec", metadata=an_object(labels=LABELS, annotations=LABELS), spec=POD),
    "volumeClaimTemplates": a_list(an_object("metadata", "spec", metadata=NAMED, spec=CLAIMED)),
    "service": FLAG,
}
# agent-sandbox's, by apiVersion and kind: the `spec` of each.
SANDBOX_SPECS: dict[tuple[str, str], Schema] = {
    ("agents.x-k8s.io/v1beta1", "Sandbox"): an_object(
        "podTemplate", operatingMode={"enum": ["Running", "Suspended"]}, **BLUEPRINT
    ),
    ("extensions.agents.x-k8s.io/v1beta1", "SandboxTemplate"): an_object(
        "podTemplate",
        envVarsInjectionPolicy={"enum": ["Allowed", "Overrides", "Disallowed"]},
        volumeClaimTemplatesPolicy={"enum": ["Allowed", "Overrides", "Disallowed"]},
        networkPolicyManagement={"enum": ["Managed", "Unmanaged"]},
        networkPolicy=an_object(ingress=INGRESS, egress=EGRESS),
        **BLUEPRINT,
    ),
    ("extensions.agents.x-k8s.io/v1beta1", "SandboxWarmPool"): an_object(
        "sandboxTemplateRef", replicas=COUNT, sandboxTemplateRef=NAMED
    ),
    ("extensions.agents.x-k8s.io/v1beta1", "SandboxClaim"): an_object("warmPoolRef", warmPoolRef=NAMED),
}


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """The pod's spec in a StatefulSet, a Deployment, a Sandbox or its template."""
    spec = manifest["spec"]
    return (spec.get("template") or spec["podTemplate"])["spec"]
