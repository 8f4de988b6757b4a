// Builds the boot image. Runs on the trusted side, at installation; with packages, whose code it runs, confined as a guest is:
//   node --experimental-wasm-jspi build_image.mjs RUNTIME_FOLDER INSIDE_FOLDER IMAGE_FILE BUILD_ID [PACKAGES [MODULES]]
// PACKAGES is a JSON list of {folder, point, bytecode}, MODULES one of what is to be imported in the image.
import fs from "node:fs";
import { saveImage } from "./image.mjs";
import { leave } from "./leave.mjs";
import { Recorder } from "./libraries.mjs";
import { loadRuntime, mount, mountPackage } from "./pyodide.mjs";
import { makeReproducible } from "./reproducible.mjs";

const [runtime, inside, file, buildId, packages, modules] = process.argv.slice(2);
if (!runtime || !inside || !file || !buildId) throw new Error("usage: build_image.mjs RUNTIME INSIDE IMAGE BUILD_ID");

const INSIDE = "/lib/kernelmcp"; // guest code keeps this file name in tracebacks

// An image with packages stays on its machine, and their modules may draw numbers at their import that nothing draws again.
if (!packages) makeReproducible("build_image.mjs");
const recorder = new Recorder();
const pyodide = await loadRuntime(runtime, recorder);
mount(pyodide, inside, INSIDE);
pyodide.runPython(`import sys; sys.dont_write_bytecode = True; sys.path.append(${JSON.stringify(INSIDE)})`);
const mounts = JSON.parse(packages ?? "[]");
for (const each of mounts) mountPackage(each, (point, root) => mount(pyodide, root, point));
const points = JSON.stringify(mounts.map((/** @type {any} */ entry) => entry.point));
const given = `${JSON.stringify(points)}, ${JSON.stringify(modules ?? "[]")}`;
await pyodide.runPythonAsync(`import kernelmcp_guest; await kernelmcp_guest.build(${given})`);
pyodide.runPython("for _name in ('kernelmcp_guest', 'sys', '_name'): globals().pop(_name, None)");
const { streams, filesystems } = pyodide.FS;
const refused = (/** @type {any} */ each) => each.stream_ops === filesystems.NODEFS.stream_ops && each.nfd === undefined;
const open = streams.filter((/** @type {any} */ each) => each?.fd > 2 && !refused(each)); // Emscripten keeps refused ones
if (open.length) throw new Error(`files are open, which no image holds: ${open.map((/** @type {any} */ { path }) => path)}`);
saveImage(file, pyodide.makeMemorySnapshot(), buildId, recorder.describe());
fs.writeSync(1, `boot image: ${(fs.statSync(file).size / 1e6).toFixed(1)} MB\n`);
leave(0);
