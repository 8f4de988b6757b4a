"""A disk whose clock has whole seconds gives two changes the same time: the second one is seen all the same."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelmcp.atomic import replace_text
from kernelmcp.upstreams.catalogue_store import CatalogueStore
from kernelmcp.upstreams.logins.oauth import Logins
from kernelmcp.upstreams.skills import PromotedSkills, Skill

Change = Callable[[Path, str], object]
Look = Callable[[Path], object]


def promote(home: Path, text: str) -> None:
    PromotedSkills(home).add("local", Skill(f"s{text}", f'"""{text}"""\n', text, ()))


def accept(home: Path, text: str) -> None:
    CatalogueStore(home).keep_pins("crm", {"get_deal": text})


def log_in(home: Path, text: str) -> None:
    file = Logins(home).file("crm")
    file.parent.mkdir(exist_ok=True)
    replace_text(file, text)


@pytest.mark.parametrize(
    ("change", "look"),
    [
        (promote, lambda home: PromotedSkills(home).stamps()),
        (accept, lambda home: CatalogueStore(home).pins_stamp("crm")),
        (log_in, lambda home: Logins(home).stamp("crm")),
    ],
    ids=["skills of all", "pins", "login"],
)
def test_two_changes_in_one_second_are_two(tmp_path: Path, change: Change, look: Look) -> None:
    seen: list[object] = [look(tmp_path)]
    for text in "ab":
        change(tmp_path, text)
        for path in (tmp_path, *tmp_path.rglob("*")):
            os.utime(path, (1_000_000_000, 1_000_000_000))
        seen.append(look(tmp_path))
        assert look(tmp_path) == seen[-1]
    assert len(set(map(str, seen))) == 3
