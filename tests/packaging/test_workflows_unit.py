"""The workflows of CI: valid, pinned, without rights that they do not need, and of commands that exist.

No machine here runs them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kernelmcp import cli

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# What comes with a runner, or with what an earlier step installs.
PROGRAMS = {"apt-get", "bash", "cd", "cp", "echo", "env", "git", "kernelmcp", "python", "wsl"}
OWN_FOLDERS = ("scripts/", ".ci/", "tests/")
Json = dict[str, Any]


def load(file: Path) -> Json:
    read = yaml.safe_load(file.read_text("utf-8"))
    return {"on" if key is True else key: value for key, value in read.items()}  # YAML 1.1's `on` is a boolean


def steps(workflow: Json) -> Iterator[Json]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


def commands(script: str) -> Iterator[list[str]]:
    """Each command of a script, also those that a shell is given."""
    words = shlex.split(re.sub(r"\$\{\{.*?\}\}", "EXPRESSION", script), comments=True)
    command: list[str] = []
    for word in [*words, "&&"]:
        if word == "&&":
            yield command
            command = []
        elif " && " in word:
            yield from commands(word)
        else:
            command.append(word)


@pytest.fixture(params=WORKFLOWS, ids=lambda file: file.name)
def workflow(request: pytest.FixtureRequest) -> Json:
    return load(request.param)


def test_there_are_both() -> None:
    assert [file.name for file in WORKFLOWS] == ["ci.yml", "release.yml"]


def test_a_workflow_fits_the_schema(workflow: Json) -> None:
    vendored = resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "github-workflows.json"
    schema = json.loads(vendored.read_text("utf-8"))
    jsonschema.validate(workflow, schema)


def test_every_action_is_pinned_to_a_commit_and_says_its_version() -> None:
    for file in WORKFLOWS:
        used = re.findall(r"uses: (.*)", file.read_text("utf-8"))
        assert used
        assert [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_rights_are_the_least_and_no_checkout_keeps_its_token(workflow: Json) -> None:
    assert workflow["permissions"] in ({}, {"contents": "read"})
    written = {
        right
        for job in workflow["jobs"].values()
        for right, how in job.get("permissions", {}).items()
        if how == "write"
    }
    assert written <= {"id-token", "attestations"}
    assert not written or "pull_request" not in workflow["on"]
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"] == {"persist-credentials": False}
    for job in workflow["jobs"].values():  # no package that a build installs may sign
        assert "id-token" not in job.get("permissions", {}) or not any("run" in step for step in job["steps"])


def test_no_text_of_a_stranger_becomes_a_part_of_a_command(workflow: Json) -> None:
    """A branch's or a title's name could hold a command; only the matrix is ours."""
    expressions = [each for step in steps(workflow) for each in re.findall(r"\$\{\{(.*?)\}\}", step.get("run", ""))]
    assert [each for each in expressions if not re.fullmatch(r" matrix\.\w+ ", each)] == []


def test_every_job_ends(workflow: Json) -> None:
    assert all(job["timeout-minutes"] <= 90 for job in workflow["jobs"].values())


def test_every_command_exists(workflow: Json) -> None:
    ran = [command for step in steps(workflow) if "run" in step for command in commands(step["run"])]
    assert ran
    parser = cli._parser()  # pyright: ignore[reportPrivateUsage]
    for program, *arguments in ran:
        if program.startswith(OWN_FOLDERS):
            assert os.access(ROOT / program, os.X_OK), program
        else:
            assert program in PROGRAMS
        if program == "kernelmcp":
            parser.parse_args(arguments)
        if program == "python":
            assert arguments[0] == "-m"
            assert find_spec(arguments[1])
        named = [argument for argument in arguments if argument.startswith(OWN_FOLDERS)]
        assert [name for name in named if not (ROOT / name).exists()] == []


def test_scripts_know_the_options_that_the_workflows_give_them() -> None:
    used = {
        option for file in WORKFLOWS for option in re.findall(r"(?<= )--(?:newest|tagged)\b", file.read_text("utf-8"))
    }
    text = "".join((ROOT / "scripts" / name).read_text("utf-8") for name in ("lowest", "release"))
    assert used == {"--newest", "--tagged"}
    assert all(option in text for option in used)


def test_every_platform_of_the_readme_runs_the_suite() -> None:
    jobs = load(WORKFLOWS[0])["jobs"]
    matrix = [(each["runner"], each["python"]) for each in jobs["linux"]["strategy"]["matrix"]["include"]]
    runners = {runner for runner, _ in matrix} | {jobs["macos"]["runs-on"], jobs["windows"]["runs-on"]}
    assert {"ubuntu-24.04", "ubuntu-24.04-arm", "macos-15", "windows-2025"} == runners
    for name in ("linux", "macos", "windows"):
        assert any(".ci/run" in step.get("run", "") for step in jobs[name]["steps"]), name
