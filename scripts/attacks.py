"""Attacks the sandbox with each layer left out in turn, and writes which attacks the rest still stops.

The attacks are those of tests/attacks. Takes about two minutes. Without `--print` the table goes into
docs/threat-model.md, between its two marks. Exits 1 when an attack gets through with all layers on.
"""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kernelmcp_kernel.sandbox import landlock  # noqa: E402
from tests.attacks import suite  # noqa: E402
from tests.attacks.attackers import ATTACKERS  # noqa: E402

THREAT_MODEL = ROOT / "docs" / "threat-model.md"
BEGIN, END = "<!-- made by scripts/attacks -->\n", "<!-- end -->"

SYSTEM = {
    "no landlock": {"landlock"},
    "no seccomp": {"seccomp"},
    "no limits": {"limits"},
    "environment kept": {"environment"},
    "descriptors kept": {"descriptors"},
    "none": suite.ALL_OFF,
}
NODE = {
    "no permission": {"permission"},
    "globals kept": {"globals"},
    "JavaScript open": {"permission", "globals"},
}
COLUMNS: dict[str, dict[str, set[str] | frozenset[str]]] = {
    "guest": {"all on": set(), **NODE, **SYSTEM},
    "javascript": {"all on": set(), **SYSTEM},
    "quickjs": {"all on": set(), "no permission": {"permission"}, **SYSTEM},
    "quickjs node": {"all on": set(), "no permission": {"permission"}, **SYSTEM},
    "native": {"all on": set(), **SYSTEM},
    "pip": {"all on": set(), **SYSTEM},
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/attacks", description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the table, write nothing")
    options = parser.parse_args()
    results: dict[str, dict[str, list[suite.Outcome]]] = {}
    for kind in ATTACKERS:
        for name, off in COLUMNS[kind].items():
            found = results.setdefault(name, {})[kind] = suite.run(kind, frozenset(off))
            through = sum(bool(outcome.evidence) for outcome in found)
            print(f"{kind}, {name}: {through} of {len(found)} got through", file=sys.stderr)
    text = f"{machine()}\n\n{suite.table(results)}\n"
    if options.print:
        print(text)
    else:
        page = THREAT_MODEL.read_text("utf-8")
        before, _, rest = page.partition(BEGIN)
        after = rest.partition(END)[2]
        THREAT_MODEL.write_text(f"{before}{BEGIN}\n{text}{END}{after}", "utf-8")
    return 1 if any(outcome.evidence for found in results["all on"].values() for outcome in found) else 0


def machine() -> str:
    kernel = platform.release().split("-")[0]
    return f"Linux {kernel}, {platform.machine()}, Landlock ABI {landlock.available()}."


if __name__ == "__main__":
    sys.exit(main())
