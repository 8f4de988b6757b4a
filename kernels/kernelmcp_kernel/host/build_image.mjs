// Builds a boot image. Runs on the trusted side, at installation:
//   node --experimental-wasm-jspi build_image.mjs RUNTIME_FOLDER INSIDE_FOLDER IMAGE_FILE BUILD_ID
// And one with packages, whose code it runs, confined as a guest is; its Python begins with another image (start_guest.cjs):
//   ... build_image.mjs RUNTIME_FOLDER INSIDE_FOLDER IMAGE_FILE BUILD_ID BASE_IMAGE BASE_ID PACKAGES MODULES
// PACKAGES is a JSON list of {folder, point, bytecode}, MODULES one of what is to be imported in the image.
import fs from "node:fs";
import path from "node:path";
import process from "node:process";
import { pathToFileURL } from "node:url";
import { findImage, saveImage } from "./image.mjs";
import { leave } from "./leave.mjs";
import { Recorder } from "./libraries.mjs";
import { loadRuntime, mount, mountPackage } from "./pyodide.mjs";

const [runtime, inside, file, buildId, baseFile, baseId, packages, imported] = process.argv.slice(2);
if (!runtime || !inside || !file || !buildId) throw new Error("usage: build_image.mjs RUNTIME INSIDE IMAGE ID [BASE ID PACKAGES MODULES]");

const INSIDE = "/lib/kernelmcp"; // guest code keeps this file name in tracebacks

// An image with packages stays on its machine, and their modules may draw numbers at their import that nothing draws again.
if (!packages) (await import("./reproducible.mjs")).makeReproducible("build_image.mjs"); // never in a bundle
const base = baseFile && baseId ? findImage(baseFile, baseId) : undefined;
const recorder = new Recorder();
/** @param {any} factory Emscripten's module factory @returns {(settings: any) => Promise<any>} */
const watched = (factory) => async (settings) => {
  const module = await factory(settings);
  recorder.watch(module);
  return module;
};
/** The bundle's own factory is for a heap that is put back. @param {any} settings */
async function loadWhole(settings) {
  const { default: factory } = await import(pathToFileURL(path.join(runtime ?? "", "pyodide", "pyodide.asm.mjs")).href);
  return watched(factory)(settings);
}
const loadOptions = (/** @type {any} */ factory) => base?.loadOptions(watched(factory)) ?? { createPyodideModule: loadWhole };
const pyodide = await loadRuntime(runtime, { loadOptions });
mount(pyodide, inside, INSIDE);
if (!base) {
  pyodide.runPython(`import sys; sys.dont_write_bytecode = True; sys.path.append(${JSON.stringify(INSIDE)})`);
  await pyodide.runPythonAsync("import kernelmcp_guest; await kernelmcp_guest.build()");
}
if (packages) {
  const mounts = JSON.parse(packages);
  for (const each of mounts) mountPackage(each, (point, root) => mount(pyodide, root, point));
  const points = JSON.stringify(mounts.map((/** @type {any} */ entry) => entry.point));
  const given = [points, imported ?? "[]"].map((text) => JSON.stringify(text));
  await pyodide.runPythonAsync(`import kernelmcp_guest; await kernelmcp_guest.extend(${given})`);
}
pyodide.runPython("for _name in ('kernelmcp_guest', 'sys', '_name'): globals().pop(_name, None)");
const { streams, filesystems } = pyodide.FS;
const refused = (/** @type {any} */ each) => each.stream_ops === filesystems.NODEFS.stream_ops && each.nfd === undefined;
const open = streams.filter((/** @type {any} */ each) => each?.fd > 2 && !refused(each)); // Emscripten keeps refused ones
if (open.length) throw new Error(`files are open, which no image holds: ${open.map((/** @type {any} */ { path }) => path)}`);
saveImage(file, pyodide.makeMemorySnapshot(), buildId, recorder.describe());
fs.writeSync(1, `boot image: ${(fs.statSync(file).size / 1e6).toFixed(1)} MB\n`);
leave(0);
