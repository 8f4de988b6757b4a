"""The code blocks and the commands in README, CONTRIBUTING and docs/, and who runs each command.

A command is here under the line that a reader copies. A new one is either run by test_blocks.py, as are those that
`HERE` names, or has a file that runs it, with words of that file. tests/docs/test_blocks_unit.py compares the two.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mistune

from .test_docs_unit import PAGES, ROOT

SHELL = "sh"
# What a fence may name. `text` is what a program prints, or a drawing; nobody runs it.
LANGUAGES = {SHELL, "bash", "javascript", "nginx", "python", "text", "toml", "{toctree}"}
# These are read on code hosts first, and their blocks are commands, indented to spare lines.
COMMANDS_ONLY = {"README.md", "CONTRIBUTING.md"}


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    text: str


@dataclass(frozen=True)
class Elsewhere:
    """The file of the repository that runs a command, the words of it that do, and what the test cannot do here."""

    file: str
    words: str
    reason: str = ""


def _walk(nodes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for node in nodes:
        yield node
        yield from _walk(node.get("children", []))


def _parsed() -> tuple[list[Block], list[tuple[str, str]]]:
    """All blocks, and all code within sentences with its page."""
    parse = mistune.create_markdown(renderer="ast", plugins=["table"])
    blocks: list[Block] = []
    inline: list[tuple[str, str]] = []
    for path in PAGES:
        page = path.relative_to(ROOT).as_posix()
        for node in _walk(parse(path.read_text("utf-8"))):  # type: ignore[arg-type]
            if node["type"] == "block_code":
                indented = node.get("style") == "indent" and page in COMMANDS_ONLY
                language = SHELL if indented else node.get("attrs", {}).get("info", "")
                blocks.append(Block(page, language, node["raw"]))
            elif node["type"] == "codespan":
                inline.append((page, node["raw"]))
    return blocks, inline


BLOCKS, INLINE = _parsed()


def commands(block: Block) -> list[str]:
    """The lines of a block of commands, without comments."""
    lines = (re.sub(r"(^|\s)#.*", "", line).rstrip() for line in block.text.splitlines())
    return [line for line in lines if line]


def blocks(language: str, page: str | None = None) -> list[Block]:
    return [block for block in BLOCKS if block.language == language and page in (None, block.page)]


# Run by test_blocks.py, each in a scratch home.
HERE = {
    "export KERNELMCP_TRANSPORT_HTTP__AUTH_TOKEN=$(openssl rand -hex 32)",
    "kernelmcp serve --transport http --host 0.0.0.0",
    "jupyter execute --inplace --kernel_name=kernelmcp notebook.ipynb",
    "kernelmcp install claude-desktop --uninstall",
    "kernelmcp serve --config mcp.toml --policy policy.toml --log-level debug",
    "kernelmcp serve --transport http",
    "KERNELMCP_TRANSPORT_HTTP__AUTH_TOKEN=$(openssl rand -hex 32) kernelmcp serve --transport http --host 0.0.0.0",
    "KERNELMCP_SERVER__SLOT=s1 KERNELMCP_HOME=/srv/kernelmcp kernelmcp serve --transport http --port 8001",
    "KERNELMCP_SERVER__SLOT=s2 KERNELMCP_HOME=/srv/kernelmcp kernelmcp serve --transport http --port 8002",
}

NEWCOMER = "tests/docs/test_newcomer.py"
NO_CLUSTER = "there is no cluster: the manifests are built by kustomize and validated"
NO_DOCKER = "there is no Docker daemon in CI"

ELSEWHERE = {
    "pip install . && kernelmcp demo": Elsewhere(NEWCOMER, r"(pip install \. && kernelmcp demo)"),
    "pip uninstall kernelmcp": Elsewhere(NEWCOMER, "pip uninstall --yes kernelmcp"),
    "pip install -e '.[test]' && pytest": Elsewhere(".ci/run", "pip install -e '.[test]'"),
    "pip install -e '.[test]'": Elsewhere(".ci/run", "pip install -e '.[test]'"),
    "pip wheel --no-deps --wheel-dir dist .": Elsewhere("scripts/release", "-m pip wheel --no-deps --wheel-dir"),
    "uv tool install dist/kernelmcp-*.whl": Elsewhere("tests/packaging/installed.py", 'documented("uv tool")'),
    "pipx install dist/kernelmcp-*.whl": Elsewhere("tests/packaging/installed.py", "documented('pipx')"),
    "pip install dist/kernelmcp-*.whl": Elsewhere("tests/packaging/installed.py", "documented('pip install')"),
    "uvx --from dist/kernelmcp-*.whl kernelmcp --version": Elsewhere(
        "tests/packaging/installed.py", 'documented("uvx")'
    ),
    "claude plugin marketplace add ./": Elsewhere("tests/packaging/test_plugin.py", "claude plugin {command}"),
    "claude plugin install kernelmcp@kernelmcp": Elsewhere("tests/packaging/test_plugin.py", "claude plugin {command}"),
    "pip install nbclient": Elsewhere("pyproject.toml", '"nbclient>=', "the test environment has it"),
    "pip install '.[lab]'": Elsewhere(
        "tests/lab/test_command_unit.py", 'project["lab"]', "the test extra has all of it"
    ),
    "pip install '.[wheel-build]'": Elsewhere(
        "tests/server/test_build_wheel.py", "build-wheel", "it needs Python 3.12, and the guest's to be of use"
    ),
    "pip install pre-commit && pre-commit install": Elsewhere(
        ".pre-commit-config.yaml", "ruff", "it changes the clone's own git hooks"
    ),
    "kernelmcp lab": Elsewhere("tests/lab/support.py", '"kernelmcp", "lab", "--no-browser"'),
    "kernelmcp setup": Elsewhere("tests/server/test_setup.py", 'run_kernelmcp("setup"'),
    "kernelmcp build-wheel ./mypackage": Elsewhere("tests/server/test_build_wheel.py", 'run_kernelmcp("build-wheel"'),
    'claude mcp add --transport http kernelmcp http://HOST:8000/mcp --header "Authorization: Bearer TOKEN"': Elsewhere(
        "tests/server/http_support.py", "bearer(token)", "that client needs an account; others send the same header"
    ),
    "scripts/corpus --python python3.13 --every 3": Elsewhere(
        "tests/test_corpus.py", "from corpus import", "it takes an hour; a test has what it compares"
    ),
    "haproxy -f deploy/haproxy.cfg": Elsewhere("tests/packaging/test_deploy_haproxy.py", "haproxy.cfg"),
    "docker build -f deploy/Dockerfile -t kernelmcp .": Elsewhere("deploy/Dockerfile", "pip install", NO_DOCKER),
    "docker run --rm kernelmcp kernelmcp doctor": Elsewhere("tests/server/test_doctor.py", '"doctor"', NO_DOCKER),
    (
        "docker run --stop-timeout 30 -p 127.0.0.1:8000:8000 "
        "-e KERNELMCP_TRANSPORT_HTTP__AUTH_TOKEN=$TOKEN -v kernelmcp:/data kernelmcp"
    ): Elsewhere("deploy/Dockerfile", "/data", NO_DOCKER),
    "kubectl create namespace kernelmcp": Elsewhere(
        "tests/packaging/test_deploy_kustomize.py", "kustomize", NO_CLUSTER
    ),
    "kubectl -n kernelmcp create secret generic kernelmcp --from-file=tokens.toml": Elsewhere(
        "deploy/kubernetes", "tokens.toml", NO_CLUSTER
    ),
    "kubectl apply -k deploy/kubernetes": Elsewhere(
        "tests/packaging/test_deploy_kustomize.py", "kustomize", NO_CLUSTER
    ),
    "pytest -m fast": Elsewhere("tests/conftest.py", "markexpr == FAST", "it is this run, of one tier"),
    "pytest tests/server/test_files.py": Elsewhere(".ci/run", "pytest", "it is a part of this run"),
    "pytest": Elsewhere(".ci/run", "pytest"),
    "scripts/check": Elsewhere(".ci/run", "scripts/check"),
    ".ci/run": Elsewhere("tests/test_tiers.py", "CONTRIBUTING", "it is what runs this"),
}

# Of the commands within README's sentences. Its table of clients is test_newcomer.py's.
README_INLINE = {
    "kernelmcp doctor": Elsewhere(NEWCOMER, "kernelmcp doctor --json"),
    "kernelmcp setup": ELSEWHERE["kernelmcp setup"],
    "kernelmcp serve --transport http": Elsewhere("tests/docs/test_blocks.py", "line in HERE"),
    "kernelmcp replay NOTEBOOK": Elsewhere("tests/server/test_replay.py", 'run_kernelmcp("replay"'),
    "kernelmcp upstreams import claude_desktop": Elsewhere("tests/upstreams/test_commands.py", '"import"'),
    "kernelmcp upstreams try NAME": Elsewhere("tests/upstreams/test_commands.py", 'run("try", "crm")'),
    "kernelmcp upstreams login NAME": Elsewhere("tests/upstreams/browser.py", '"upstreams", "login"'),
    "kernelmcp audit --since 1d": Elsewhere("tests/code_mode/test_calls.py", '"audit", "--since", "1d"'),
    "kernelmcp skills list": Elsewhere("tests/upstreams/test_skills.py", 'main(["skills", "list"])'),
    "kernelmcp skills promote SESSION NAME": Elsewhere("tests/code_mode/test_skills.py", '"promote"'),
    "kernelmcp skills remove NAME": Elsewhere("tests/upstreams/test_skills.py", 'main(["skills", "remove"'),
    "kernelmcp build-wheel": ELSEWHERE["kernelmcp build-wheel ./mypackage"],
    "pip install jupyterlab": Elsewhere("pyproject.toml", '"jupyterlab>=', "the test environment has it"),
    "python3 -m venv .venv && . .venv/bin/activate": Elsewhere(NEWCOMER, "venv.create(environment"),
}
