"""scripts/compare, with the two engines that are always there: the sandbox holds, and the same attacks on native Python
show that they would be noticed."""

import re
import subprocess
import sys

import pytest

from .test_docs_unit import ROOT

SECONDS = 600
PAGE = (ROOT / "docs" / "compare.md").read_text("utf-8")


def rows(text: str) -> dict[str, dict[str, str]]:
    """Both tables, by the engine's name and the column's title."""
    found: dict[str, dict[str, str]] = {}
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        titles, _, *lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        for line in lines:
            found.setdefault(line[0].split()[0], {}).update(zip(titles, line, strict=True))
    return found


def test_the_page_has_every_engine_with_its_limits() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    from compare_peers import PEERS

    found = rows(PAGE)
    assert list(found) == [peer.name for peer in PEERS]
    for peer in PEERS:
        assert found[peer.name]["limits"] == peer.limits
        measured = re.fullmatch(r"[\d,.]+ ms \([\d,.]+x\)", found[peer.name]["call, p50"])
        assert measured or found[peer.name]["spawn to first result"].startswith("not run here: needs ")


@pytest.mark.slow
def test_the_same_work_in_a_sandbox_and_in_native_python() -> None:
    options = ["--only=kernelmcp,ipykernel", "--rounds=1", "--calls=3", "--limit=2", "--print"]
    command = [ROOT / "scripts" / "compare", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found = rows(done.stdout)
    same = {"state kept": "yes", "picture": "yes", "loop of 60 s stopped": "yes, variables kept"}
    for name, through in (("kernelmcp", "0"), ("ipykernel", "10")):
        assert found[name].items() >= (same | {"attacks through, of 10": through}).items(), done.stderr
