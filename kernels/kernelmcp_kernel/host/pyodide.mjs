// Loads Pyodide, fresh or from a boot image, with our shims and file systems in place.
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { installShims } from "./shims.mjs";

const [EACCES, EIO] = [2, 29]; // Emscripten's errno numbers are WASI's
const SITE_PACKAGES = "/lib/python3.14/site-packages";

/** @param {string} runtime folder that holds pyodide/ and site/ @param {import("./image.mjs").Image} [image] */
export async function loadRuntime(runtime, image) {
  const folder = path.join(runtime, "pyodide");
  installShims(WebAssembly.compile(fs.readFileSync(path.join(folder, "pyodide.asm.wasm")))); // in the background
  const { loadPyodide } = await import(pathToFileURL(path.join(folder, "pyodide.mjs")).href);
  const { default: factory } = await import(pathToFileURL(path.join(folder, "pyodide.asm.mjs")).href);
  const index = JSON.parse(fs.readFileSync(path.join(folder, "pyodide-lock.json"), "utf8"));
  const pyodide = await loadPyodide({
    indexURL: folder,
    lockFileContents: { info: index.info, packages: {} }, // packages are not installed from inside the guest
    env: { HOME: "/home/pyodide", LANG: "C.UTF-8", TERM: "dumb" },
    _makeSnapshot: true,
    checkAPIVersion: false,
    stdout: () => {},
    stderr: () => {},
    ...image?.loadOptions(factory),
  });
  nameRefusals(pyodide.FS.filesystems.NODEFS);
  mount(pyodide, path.join(runtime, "site"), SITE_PACKAGES);
  return pyodide;
}

/** Node's permission model has an error code that Emscripten does not know: it would make of it no error at all, and of a
 * refused open() descriptor 0. @param {any} nodefs */
function nameRefusals(nodefs) {
  const convert = nodefs.convertNodeCode;
  nodefs.convertNodeCode = (/** @type {any} */ error) =>
    error.code === "ERR_ACCESS_DENIED" ? EACCES : (convert.call(nodefs, error) ?? EIO);
}

/** Show a host directory to the guest. @param {any} pyodide @param {string} root @param {string} point */
export function mount(pyodide, root, point) {
  pyodide.FS.mkdirTree(point);
  pyodide.FS.mount(pyodide.FS.filesystems.NODEFS, { root }, point);
}
