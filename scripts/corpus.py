"""Runs programs that nobody of this project wrote, here through the MCP server and in native Python, and compares.

The programs are examples in source distributions of the index, pinned by version, and docstrings of numpy and pandas.
Both sides run the programs of a group one after the other in one process that has imported the libraries; a program has
a fresh namespace and at most a minute.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import urllib.parse
import urllib.request
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from PIL import Image, ImageChops, ImageFilter
from pip._internal.models.index import PyPI

ROOT = Path(__file__).resolve().parents[1]
HARNESS = ROOT / "scripts" / "corpus_program.py"
LIMIT_SECONDS = 60
# Verdicts of programs that do the same.
SAME_SHARE = 0.97
SAME = ("same", "same but for digits", "same but for 32 bits")
NATIVE_SECONDS = BEGIN_SECONDS = 300
# A program that takes less natively says nothing about speed.
LONG_SECONDS = 0.3
FOUND = "found.json"  # in the shared folder
# FreeType moves text, and what is laid out beside it, by a pixel or two. A pixel differs when it is by so many
# greys out of what the other picture has within that distance; pictures differ when so large a share of theirs does.
DISPLACED_PIXELS, OTHER_GREY, OTHER_SHARE = 2, 32, 0.002

EXAMPLES = {
    "matplotlib==3.10.8": (
        "galleries/examples",
        *("lines_bars_and_markers", "statistics", "images_contours_and_fields", "pie_and_polar_charts", "color"),
        *("subplots_axes_and_figures", "shapes_and_collections", "mplot3d", "scales", "spines", "ticks"),
        *("text_labels_and_annotations",),
    ),
    "networkx==3.5": ("examples", "basic", "drawing", "algorithms", "graph", "subclass"),
    "scikit-learn==1.8.0": ("examples", "linear_model", "cluster", "svm", "tree", "covariance", "calibration"),
}
MODULES = {
    "matplotlib": ["numpy", "matplotlib.pyplot"],
    "networkx": ["numpy", "scipy", "matplotlib.pyplot", "seaborn", "networkx"],
    "scikit-learn": ["numpy", "scipy", "pandas", "matplotlib.pyplot", "sklearn.linear_model"],
    "docstrings": ["numpy", "scipy.interpolate", "pandas"],
}
# Of the index, not of Pyodide's distribution: an import does not bring it.
INSTALLED = {"networkx": "%pip install -q networkx==3.5\n"}
DOCSTRINGS = """
import json, numpy as np, pandas as pd
found = {f"numpy.{name}": getattr(np, name).__doc__ for name in np.__all__ if callable(getattr(np, name))}
for kind in (pd.Series, pd.DataFrame):
    found |= {f"pandas.{kind.__name__}.{name}": getattr(kind, name).__doc__ for name in dir(kind) if name[0] != "_"}
print(json.dumps({name: text for name, text in found.items() if text and ">>> " in text}))
"""
NATIVE = ["numpy==2.4.3", "pandas==3.0.2", "scipy", "seaborn", *EXAMPLES]
# Their data is fetched, a person or a program beside Python takes part, or a figure moves.
_ELSEWHERE = re.compile(
    r"fetch_|get_sample_data|load_dataset|sample_data|widgets|animation|ginput|usetex|pygraphviz|multiprocessing|n_jobs|plotly"
    r"|subprocess|open\(|time\.|datetime\.now|Path\(|timeit|read_csv|to_csv|to_excel|urlopen|tempfile|parallel"
)


@dataclass(frozen=True)
class Program:
    group: str
    name: str
    kind: str
    source: str


def sdist(requirement: str, folder: Path) -> Path:
    """The source distribution of a pinned requirement, from the index that pip uses."""
    name, version = requirement.split("==")
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    index = os.environ.get("PIP_INDEX_URL") or asked.stdout.strip() or PyPI.simple_url
    request = urllib.request.Request(  # the index is the user's own
        f"{index.rstrip('/')}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request) as answer:
        listed = json.load(answer)["files"]
        (url,) = [each["url"] for each in listed if each["filename"].endswith(f"-{version}.tar.gz")]
        target = folder / f"{name}-{version}.tar.gz"
        urllib.request.urlretrieve(urllib.parse.urljoin(answer.url, url), target)
    return target


def examples(folder: Path) -> Iterator[Program]:
    for requirement, (below, *chosen) in EXAMPLES.items():
        group = requirement.partition("==")[0]
        wanted = re.compile(rf"^[^/]+/{below}/({'|'.join(chosen)})/[^/]+\.py$")
        with tarfile.open(sdist(requirement, folder)) as archive:
            for member in sorted(archive, key=lambda each: each.name):
                if not wanted.match(member.name):
                    continue
                source = archive.extractfile(member)
                text = source.read().decode() if source else ""
                if not _ELSEWHERE.search(text):
                    yield Program(group, member.name.partition(f"/{below}/")[2], "program", text)


def docstrings(python: Path) -> Iterator[Program]:
    """One program for each function of numpy, and method of a Series or DataFrame, that has examples."""
    listed = subprocess.run([python, "-c", DOCSTRINGS], capture_output=True, text=True, check=True)
    for name, text in json.loads(listed.stdout).items():
        if not _ELSEWHERE.search(text):
            begin = "import numpy as np, pandas as pd\n"
            yield Program("docstrings", name, "docstring", f">>> {begin}\n{text}")


def native_python(folder: Path, python: str) -> Path:
    subprocess.run([python, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "pip", "install", "-q", *NATIVE], check=True)
    return folder / "bin" / "python"


class Native:
    """A native Python with a group's modules imported: one process for all its programs, as they have one session."""

    def __init__(self, python: Path, group: str, folder: Path, hash_seed: int = 1) -> None:
        self._command = [python, HARNESS, *MODULES[group]]
        self._environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        self._folder = folder
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self._command, env=self._environment, cwd=self._folder, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip

    def run(self, program: Program) -> dict[str, Any]:
        if self._process.poll() is not None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"source": program.source, "kind": program.kind}) + "\n")
        process.stdin.flush()
        timer = threading.Timer(NATIVE_SECONDS, process.kill)
        timer.start()
        try:
            for line in process.stdout:
                _, found, text = line.rpartition("@@")
                if found:
                    return json.loads(text)
        finally:
            timer.cancel()
        process.wait()
        return {"error": "Ended: the process ended, or had no answer in time", "out": "", "figures": [], "seconds": 0.0}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


async def run_here(client: Client, program: Program, folder: Path) -> dict[str, Any]:
    source = base64.b64encode(program.source.encode()).decode()
    code = f"import base64, json\n_found = run_program(base64.b64decode('{source}').decode(), '{program.kind}')"
    result = await client.call_tool(
        "execute_code", {"code": code, "session_id": program.group, "timeout": LIMIT_SECONDS}
    )
    facts = (result.meta or {}).get("kernelmcp/result", {})
    tokens = sum(len(block.text) for block in result.content if block.type == "text") // 4
    shown = sum(block.type in {"image", "resource_link"} for block in result.content)
    if facts.get("status") != "ok":
        said = " ".join(block.text for block in result.content if block.type == "text")
        return {"error": f"{facts.get('status')}: {said[-300:]}", "out": "", "figures": [], "seconds": 0.0}
    write = {"code": f"open('/volumes/shared/{FOUND}', 'w').write(json.dumps(_found));", "session_id": program.group}
    await client.call_tool("execute_code", write)
    text = (folder / FOUND).read_text("utf-8")
    return {**json.loads(text), "tokens": tokens, "shown": shown}


def verdict(here: dict[str, Any], native: dict[str, Any]) -> str:
    """The same; the same but for digits, or for 32 bits; other pictures, other text; or fails on one side."""
    kinds = [str(side["error"]).partition(":")[0] for side in (here, native)]
    if kinds[0] != kinds[1]:
        return "fails here" if kinds[0] else "fails natively"
    if not same_pictures(here["figures"], native["figures"]):
        return "other pictures"
    if here["figures"] and not here.get("shown"):
        return "no picture shown"
    return same_text(plain(here["out"]), plain(native["out"]))


def plain(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", re.sub(r"\s+", " ", text)).strip()


def same_text(ours: str, theirs: str) -> str:
    if ours == theirs:
        return "same"
    ours, theirs = (re.sub(r",? ?dtype=int(32|64)|\bnp\.int(32|64)\b", "", text) for text in (ours, theirs))
    if ours == theirs:
        return "same but for 32 bits"
    number = r"-?\d+\.?\d*(?:e[-+]?\d+)?"
    if re.sub(number, "#", ours) == re.sub(number, "#", theirs):
        pairs = zip(re.findall(number, ours), re.findall(number, theirs), strict=True)
        if all(close(a, b) for a, b in pairs):
            return "same but for digits"
    return "other text"


def close(ours: str, theirs: str) -> bool:
    """Whole numbers exactly; of others five digits."""
    if ours == theirs or re.fullmatch(r"-?\d+", ours):
        return ours == theirs
    return math.isclose(float(ours), float(theirs), rel_tol=1e-4, abs_tol=1e-12)


def same_pictures(ours: list[Any], theirs: list[Any]) -> bool:
    """Figures as scripts/corpus_program.py has them."""
    if [figure[:2] for figure in ours] != [figure[:2] for figure in theirs]:
        return False
    return all(same_picture(picture(mine), picture(other)) for mine, other in zip(ours, theirs, strict=True))


def picture(figure: list[Any]) -> Image.Image:
    width, height, packed = figure
    return Image.frombytes("L", (width, height), zlib.decompress(base64.b64decode(packed)))


def same_picture(mine: Image.Image, other: Image.Image) -> bool:
    return max(others(mine, other), others(other, mine)) <= OTHER_SHARE


def others(picture: Image.Image, seen: Image.Image) -> float:
    """The share of pixels that are darker or lighter than all that is seen around their place."""
    around = 2 * DISPLACED_PIXELS + 1
    lighter = ImageChops.subtract(picture, seen.filter(ImageFilter.MaxFilter(around)))
    darker = ImageChops.subtract(seen.filter(ImageFilter.MinFilter(around)), picture)
    counts = ImageChops.add(lighter, darker).histogram()
    return sum(counts[OTHER_GREY:]) / sum(counts)


async def compare(programs: list[Program], python: Path, folder: Path) -> list[dict[str, Any]]:
    sys.path.insert(0, str(ROOT))
    from tests.pyodide_packages import pyodide_folder

    environment = {
        **os.environ,
        "KERNELMCP_LOGGING__LEVEL": "warning",
        "KERNELMCP_SESSIONS__INLINE_WAIT_SECONDS": str(BEGIN_SECONDS),
        "KERNELMCP_HOME": str(folder / "home"),
        "KERNELMCP_PACKAGES__PYODIDE_URL": str(pyodide_folder()),
    }
    shared = folder / "shared"
    shared.mkdir()
    serve = ["-m", "kernelmcp", "serve", "--folder", str(shared)]
    server = StdioServerParameters(command=sys.executable, args=serve, env=environment)
    rows: list[dict[str, Any]] = []
    natives: dict[str, Native] = {}
    async with Client(server) as client:
        for program in programs:
            if program.group not in natives:
                natives[program.group] = Native(python, program.group, folder)
                await begin(client, program.group)
            native = natives[program.group].run(program)
            here = await run_here(client, program, shared)
            said = verdict(here, native)
            if said not in (*SAME, "fails here") and varies(program, python, folder, native):
                said = "varies natively"
            row = {"group": program.group, "name": program.name, "verdict": said}
            row |= {"seconds": here["seconds"], "native": native["seconds"], "tokens": here.get("tokens", 0)}
            row |= {"error": here["error"] or native["error"]}
            rows.append(row)
            print(f"{row['verdict']:22} {row['group']} {row['name']} {row['error'][:150]}", file=sys.stderr, flush=True)
            if here["error"] and not await has_state(client, program.group):
                row["verdict"] = "state lost"
                await begin(client, program.group)
    for each in natives.values():
        each.close()
    return rows


def varies(program: Program, python: Path, folder: Path, before: dict[str, Any]) -> bool:
    """Whether native processes with another order of sets do something else."""
    for seed in (2, 3, 4):
        other = Native(python, program.group, folder, seed)
        try:
            if verdict({**other.run(program), "shown": 1}, before) not in SAME:
                return True
        finally:
            other.close()
    return False


async def begin(client: Client, group: str) -> None:
    """Have the group's session import what its programs need, and the harness."""
    harness = HARNESS.read_text("utf-8").partition("\nif __name__")[0]
    imports = "\n".join(f"import {module}" for module in MODULES[group])
    arguments = {
        "code": f"{INSTALLED.get(group, '')}{imports}\n{harness}",
        "session_id": group,
        "timeout": BEGIN_SECONDS,
    }
    result = await client.call_tool("execute_code", arguments)
    if (result.meta or {}).get("kernelmcp/result", {}).get("status") != "ok":
        raise RuntimeError(f"the session of {group} cannot begin: {result.content}")


async def has_state(client: Client, group: str) -> bool:
    result = await client.call_tool("execute_code", {"code": "callable(run_program)", "session_id": group})
    return bool((result.meta or {}).get("kernelmcp/result", {}).get("status") == "ok")


def counted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["verdict"] not in {"fails natively", "varies natively"}]


def holds(rows: list[dict[str, Any]]) -> bool:
    """Are so many the same, and is no state lost?"""
    same = sum(row["verdict"] in SAME for row in rows)
    return same >= SAME_SHARE * len(counted(rows)) > 0 and all(row["verdict"] != "state lost" for row in rows)


def table(rows: list[dict[str, Any]]) -> str:
    counts = Counter(row["verdict"] for row in rows)
    both = counted(rows)
    same = sum(row["verdict"] in SAME for row in both)
    lines = [f"{same} of {len(both)} the same ({100 * same / max(1, len(both)):.1f} %; bar {100 * SAME_SHARE:.0f})"]
    lines += [f"{count:4} {what}" for what, count in counts.most_common()]
    ratios = sorted(row["seconds"] / row["native"] for row in both if row["native"] >= LONG_SECONDS and row["seconds"])
    if len(ratios) > 1:
        p90 = statistics.quantiles(ratios, n=10)[-1]
        lines.append(f"time to native, {len(ratios)} programs: median {statistics.median(ratios):.2f}, p90 {p90:.2f}")
    lines.append(f"tokens of results: {sum(row['tokens'] for row in rows)}")
    lines += [
        f"- {row['verdict']}: {row['group']} {row['name']} {row['error']}" for row in rows if row["verdict"] not in SAME
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/corpus", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="the native Python to make an environment of")
    parser.add_argument("--every", type=int, default=1, help="take each Nth program")
    parser.add_argument("--only", default="", help="take programs with this in their group or name")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kmc-") as name:
        folder = Path(name)
        python = native_python(folder / "native", options.python)
        programs = [*examples(folder), *docstrings(python)]
        chosen = [each for each in programs if options.only in f"{each.group} {each.name}"][:: options.every]
        print(f"{len(chosen)} of {len(programs)} programs", file=sys.stderr)
        rows = anyio.run(compare, chosen, python, folder)
    print(json.dumps(rows) if options.json else table(rows))
    return 0 if holds(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
