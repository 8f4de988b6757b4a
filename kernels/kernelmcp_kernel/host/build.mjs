// Builds the boot image. Runs on the trusted side, at installation; with packages, whose code it runs, confined as a guest is:
//   node --experimental-wasm-jspi build.mjs RUNTIME_FOLDER INSIDE_FOLDER IMAGE_FILE BUILD_ID [PACKAGES]
// PACKAGES is a JSON list of {folder, point}: what is to be imported in the image.
import fs from "node:fs";
import { saveImage } from "./image.mjs";
import { loadRuntime, mount } from "./pyodide.mjs";

const [runtime, inside, file, buildId, packages] = process.argv.slice(2);
if (!runtime || !inside || !file || !buildId) throw new Error("usage: build.mjs RUNTIME INSIDE IMAGE BUILD_ID");

const INSIDE = "/lib/kernelmcp"; // guest code keeps this file name in tracebacks

const pyodide = await loadRuntime(runtime);
mount(pyodide, inside, INSIDE);
pyodide.runPython(`import sys; sys.dont_write_bytecode = True; sys.path.append(${JSON.stringify(INSIDE)})`);
const mounts = JSON.parse(packages ?? "[]");
for (const { folder, point } of mounts) mount(pyodide, folder, point);
const points = JSON.stringify(JSON.stringify(mounts.map((/** @type {any} */ entry) => entry.point)));
await pyodide.runPythonAsync(`import kernelmcp_guest; await kernelmcp_guest.build(${points})`);
pyodide.runPython("for _name in ('kernelmcp_guest', 'sys', '_name'): globals().pop(_name, None)");
saveImage(file, pyodide.makeMemorySnapshot(), buildId);
fs.writeSync(1, `boot image: ${(fs.statSync(file).size / 1e6).toFixed(1)} MB\n`);
process.exit(0);
