"""What an installation says that fails: who needs what, in a sentence, without pip's files and this machine's."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelmcp_kernel.packages import resolver
from kernelmcp_kernel.packages.distribution import Listed
from kernelmcp_kernel.packages.failures.reasons import Reasons, told_in
from kernelmcp_kernel.packages.from_pip import read
from kernelmcp_kernel.packages.requirements import checked
from kernelmcp_kernel.settings import PackageSettings

# Paths of this machine, what pip calls our files, and pip's own last words.
LEAKS = re.compile(r"/tmp|/home|/packages|-r |requirements\.txt|pip failed|Exception:|ERROR|\n")


def said(told: dict[str, Any]) -> str:
    return str(Reasons(told, [], {}, {}).error())


def test_what_is_not_known_is_said_without_paths() -> None:
    path = "/srv/home/packages/tmp/x1/all/0/wheels/a.whl"
    for why in (f"cannot do '{path}'", f"ValueError: {path} and file://{path}"):
        text = said({"why": why})
        assert "a.whl" in text
        assert not LEAKS.search(text)
    assert "https://a.b/c/d" in said({"why": "cannot ask https://a.b/c/d"})


@pytest.mark.parametrize("links", [{"versions": ["0.5"]}, {"versions": ["9"]}, {"yanked": ["0.5"]}], ids=str)
def test_an_alternative_can_be_asked_for_however_its_name_is_spelled(links: dict[str, Any]) -> None:
    told = {"kind": "missing", "what": "Py_Old<=0.6,>=0.5", "links": {"py-old": links}}
    instead = Reasons(told, [], {}, {}).error().instead
    assert instead is not None
    assert checked(str(instead)).startswith("py-old")


HOSTILE: list[Any] = [
    {},
    {"kind": 7, "what": [], "why": {}},
    {"kind": "no such", "why": "a\x1b[31m\nb"},
    {"kind": "missing", "what": "", "links": [], "refused": 3},
    {"kind": "missing", "what": "x", "links": {"x": {"versions": ["no version", 3], "failure": "text"}}},
    {"kind": "missing", "what": "x<2", "links": {"x": {"failure": {"kind": "{0.__class__}", "why": "{what}"}}}},
    {"kind": "missing", "what": "x", "links": {"x": {"yanked": ["!!"], "python": None}}, "insecure": 1},
    {"kind": "conflict", "causes": [3, {"who": None, "what": " "}], "constraints": {}, "missing": ["x", ""]},
    {"kind": "wheel", "what": "x" * 10**6, "why": "{asked}\n" * 10**5},
    {"kind": "conflict", "causes": [{"who": "a 1", "what": f"x{number}"} for number in range(10**4)]},
]


@pytest.mark.parametrize("told", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_pips_process_tells_is_an_error_of_one_short_line(told: dict[str, Any]) -> None:
    text = said(told)
    assert text.isprintable()
    assert len(text) < 2000


@pytest.mark.parametrize("content", ["", "[", "[]", '"text"', "[" * 10**5, '{"why": "' + "x" * (9 << 20) + '"}'])
def test_what_is_no_description_is_replaced_by_pips_last_line(tmp_path: Path, content: str) -> None:
    assert told_in(tmp_path, "Killed") == {"why": "Killed"}
    (tmp_path / "failure.json").write_text(content)
    assert told_in(tmp_path, "Killed") == {"why": "Killed"}


def test_only_a_regular_file_within_its_bound_is_read(tmp_path: Path) -> None:
    """The folder is pip's, which has read hostile text: a pipe would be waited for, a link leads elsewhere."""
    (tmp_path / "real").write_text('{"a": 1}')
    assert read(tmp_path / "real") == {"a": 1}
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "large").write_text(f'["{"x" * (1 << 20)}"]')
    (tmp_path / "many").write_text(f"[{'[],' * 300_000}0]")
    for name in ("pipe", "link", "large", "many", "none", "."):
        assert read(tmp_path / name) is None
    assert len(read(tmp_path / "large", 2 << 20)[0]) == 1 << 20


@pytest.mark.parametrize(
    ("asked", "missing", "told"),
    [
        ("numpy", "numpy", "numpy: it comes from"),
        ("numpy pandas", "numpy pandas", "numpy, pandas: they come from"),
        ("numpy other", "numpy", "numpy, other: numpy comes from"),
        ("pandas", "pandas numpy", "pandas: it and numpy (which it needs) come from"),
        ("pandas other", "numpy", "pandas, other: numpy (which they need) comes from"),
    ],
)
def test_it_says_which_of_several_packages_cannot_be_had(asked: str, missing: str, told: str) -> None:
    names = asked.split()
    request = SimpleNamespace(asked=set(names), names=", ".join(names), cached=(), settings=PackageSettings())
    packages = [Listed(name, "1.0", f"{name}.whl", "", ()) for name in missing.split()]
    assert str(vars(resolver)["_distribution_needed"](request, packages)).startswith(told)
