"""examples/compose.yaml has the form that the compose specification gives it, by a parser of somebody else."""

from __future__ import annotations

import subprocess

import pytest

from .compose import TEXT
from .running import python

pytestmark = pytest.mark.slow

PARSE = "import sys, compose_spec; compose_spec.PyCompose.from_yaml(sys.stdin.read()).validate()"


def refusal(text: str) -> str:
    done = subprocess.run([python(), "-c", PARSE], input=text, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def test_it_is_valid() -> None:
    assert refusal(TEXT) == ""


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("mem_limit:", "mem_limits:"), ("source: tokens", "source: token"), ('"127.0.0.1:8000:', '"localhost:8000:')],
)
def test_the_parser_refuses_what_is_wrong(text: str, wrong: str) -> None:
    assert text in TEXT
    assert "ValueError" in refusal(TEXT.replace(text, wrong))
