"""The files under examples/ are short, say what they are, and name what there is. Nothing is started."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kernelmcp.config.load import load

from .compose import COMPOSE, DOCKERFILE, SERVICE, TEXT, image_environment, mounts, substituted
from .running import EXAMPLES, ROOT, inline_dependencies

MAX_LINES = 150
README = (EXAMPLES / "README.md").read_text()
FILES = sorted(
    file
    for file in EXAMPLES.rglob("*")
    if file.suffix in {".py", ".ts", ".yaml"} and "node_modules" not in file.parts and file.is_file()
)
PYTHON = [file for file in FILES if file.suffix == ".py"]
# What would run or rebuild whatever a guest sends.
NEVER = {"eval", "exec", "compile", "__import__"}
NEVER_IMPORTED = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "subprocess"}


def test_the_table_has_every_example_once() -> None:
    rows = re.findall(r"^\| \[(\S+)\]\((\S+)\) \| \S", README, re.MULTILINE)
    assert sorted(target for _, target in rows) == sorted(str(file.relative_to(EXAMPLES)) for file in FILES)
    assert all(label == target for label, target in rows)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_example_is_short_and_says_how_to_run_it(file: Path) -> None:
    text = file.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    assert max(map(len, text.splitlines())) <= 120
    if file.name != "kernel_session.py":
        assert re.search(rf"(uv run|python|node|compose -f) (examples/)?{file.name}\b", text), "it says how it is run"


@pytest.mark.parametrize("file", PYTHON, ids=lambda file: file.name)
def test_no_example_evaluates_what_a_guest_sends(file: Path) -> None:
    tree = ast.parse(file.read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imports |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names & NEVER == set()
    assert {name.partition(".")[0] for name in imports} & NEVER_IMPORTED == set()


@pytest.mark.parametrize("file", PYTHON, ids=lambda file: file.name)
def test_what_an_example_installs_has_a_lowest_and_a_highest_version(file: Path) -> None:
    text = file.read_text()
    wanted = inline_dependencies(file)
    assert bool(wanted) == (f"uv run examples/{file.name}" in text)
    assert all(re.fullmatch(r"[a-z-]+(\[[a-z,]+\])?>=[\d.]+,<\d+(\.\d+)?", one) for one in wanted), wanted


# -- compose ----------------------------------------------------------------------------------------------------------


def test_the_compose_file_names_what_there_is() -> None:
    build = SERVICE["build"]
    context = EXAMPLES / build["context"]
    assert context.resolve() == ROOT
    assert (context / build["dockerfile"]).read_text() == DOCKERFILE
    assert "examples" in (ROOT / ".dockerignore").read_text().split(), "its tokens must not be sent to a builder"
    assert "entrypoint" not in SERVICE, "the image's reaps what kernels leave"
    header = TEXT.partition("\nname:")[0]
    [user] = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert f"chown {user} examples/tokens.toml" in header
    assert COMPOSE["secrets"] == {"tokens": {"file": "./tokens.toml"}}
    assert "mkdir -p examples/shared" in header
    assert mounts() == {"/data": ("home", "rw"), "/srv/shared": ("./shared", "ro")}
    assert set(COMPOSE["volumes"]) == {"home"}
    assert image_environment()["KERNELMCP_HOME"] == "/data"
    assert re.findall(r"^VOLUME (\S+)$", DOCKERFILE, re.MULTILINE) == ["/data"]
    assert {one["source"] for one in SERVICE["secrets"]} == set(COMPOSE["secrets"])
    [published] = SERVICE["ports"]
    address, _, container = published.rsplit(":", 2)
    assert address == "127.0.0.1"
    assert f"EXPOSE {container}\n" in DOCKERFILE


def test_the_settings_of_the_compose_file_are_read_as_they_are_meant(tmp_path: Path) -> None:
    environment = {name: substituted(value) for name, value in SERVICE["environment"].items()}
    settings = load(environ={**image_environment(), **environment, "KERNELMCP_HOME": str(tmp_path)})
    config, policy = settings.config, settings.policy
    assert str(config.auth.tokens_file) == f"/run/secrets/{SERVICE['secrets'][0]['target']}"
    assert config.transport_http.allowed_hosts == ["localhost"]
    assert config.transport_http.port == int(SERVICE["ports"][0].rsplit(":", 1)[1])
    assert policy.required_layers == ["no_new_privs", "landlock", "seccomp"]
    shared = config.volumes.all["shared"]
    assert str(shared.path) in mounts()
    assert shared.mode == "ro"
    seconds = int(SERVICE["stop_grace_period"].removesuffix("s"))
    assert seconds > config.transport_http.drain_seconds + 6, "the server ends this much later at the latest"
    memory_mb = 1024 * int(SERVICE["mem_limit"].removesuffix("g"))
    assert 150 * (config.sessions.max_sessions + config.sessions.warm_pool_size + 1) < memory_mb
