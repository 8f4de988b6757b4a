"""What a guest's start does without."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import kernelmcp_kernel
from kernelmcp_kernel.runtime.build_identity import node_binary

PACKAGE = Path(kernelmcp_kernel.__file__).parent
# Deletes Pyodide's wasm as soon as it was read.
LOAD = """
import fs from "node:fs";
const [runtime, loader] = process.argv.slice(2);
const { readFileSync } = fs;
let reads = 0;
fs.readFileSync = (file, ...options) => {
  const found = readFileSync(file, ...options);
  if (String(file).endsWith(".wasm")) {
    fs.rmSync(file);
    reads += 1;
  }
  return found;
};
const { loadRuntime } = await import(loader);
const pyodide = await loadRuntime(runtime);
const { readFile } = await import("node:fs/promises");
const lock = JSON.parse(await readFile(`${runtime}/pyodide/pyodide-lock.json`, "utf8"));
console.log(JSON.stringify([reads, pyodide.runPython("6 * 7"), "packages" in lock]));
process.exit(0);
"""


def test_the_ten_megabytes_of_webassembly_are_read_once(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE / "_runtime" / "pyodide", tmp_path / "pyodide")
    (tmp_path / "site").mkdir()
    script = tmp_path / "load.mjs"
    script.write_text(LOAD)
    loader = (PACKAGE / "host" / "pyodide.mjs").as_uri()
    done = subprocess.run(
        [node_binary(), "--experimental-wasm-jspi", script, tmp_path, loader],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1, 42, True]
    assert "ENOENT" not in done.stderr
