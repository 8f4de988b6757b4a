// Loads Pyodide, fresh or from a boot image, with our shims and file systems in place.
import fs from "node:fs";
import path from "node:path";
import { EIO, errnoOf } from "./errno.mjs";
import { NOTHING, installShims } from "./node_shims.mjs";
import { importPyodide } from "./pyodide_modules.mjs";

const BYTECODE = "/lib/bytecode";
const SITE_PACKAGES = "/lib/python3.14/site-packages";
const STANDARD_LIBRARY = "/lib/python314.zip";

/** @param {string} runtime folder that holds pyodide/ and site/ @param {{loadOptions: (factory: any) => any}} [image] an Image, or who records for one
 * @param {{keep_imports?: boolean}} [options] keep_imports: leave WebAssembly what it could call; the attack suite does
 * @param {() => number} [check] CPython's signal check */
export async function loadRuntime(runtime, image, options, check) {
  const folder = path.join(runtime, "pyodide");
  const compiled = WebAssembly.compile(fs.readFileSync(path.join(folder, "pyodide.asm.wasm"))); // or load what was compiled, and free the bytes: start_guest.cjs
  installShims(compiled, !options?.keep_imports, check);
  const { loadPyodide, factory } = await importPyodide(folder);
  const index = JSON.parse(fs.readFileSync(path.join(folder, "pyodide-lock.json"), "utf8"));
  const own = image?.loadOptions(factory);
  const library = path.join(folder, "python_stdlib.zip");
  const pyodide = await loadPyodide({
    indexURL: folder,
    stdLibURL: own?._loadSnapshot ? NOTHING : library,
    lockFileContents: { info: index.info, packages: {} }, // packages are not installed from inside the guest
    env: { HOME: "/home/pyodide", LANG: "C.UTF-8", TERM: "dumb" },
    _makeSnapshot: true,
    checkAPIVersion: false,
    stdin: () => null, // else it asks for Node's, with all that Node loads for it
    stdout: () => {},
    stderr: () => {},
    ...own,
  });
  nameRefusals(pyodide.FS.filesystems.NODEFS);
  if (own?._loadSnapshot) readInPlace(pyodide, library);
  mount(pyodide, path.join(runtime, "site"), SITE_PACKAGES);
  return pyodide;
}

/** Node's permission model has an error code that Emscripten does not know: it would make of it no error at all, and of a
 * refused open() descriptor 0. @param {any} nodefs */
function nameRefusals(nodefs) {
  const convert = nodefs.convertNodeCode;
  nodefs.convertNodeCode = (/** @type {any} */ error) => convert.call(nodefs, error) ?? errnoOf(error) ?? EIO;
}

/** Pyodide would keep the standard library in memory, 2.5 MB for each guest, of which an image has loaded what usual cells import.
 * @param {any} pyodide @param {string} library */
function readInPlace({ FS }, library) {
  const folder = "/lib/pyodide";
  mount({ FS }, path.dirname(library), folder);
  FS.unlink(STANDARD_LIBRARY);
  FS.symlink(`${folder}/${path.basename(library)}`, STANDARD_LIBRARY);
}

/** Show a host directory to the guest. @param {any} pyodide @param {string} root @param {string} point */
export function mount(pyodide, root, point) {
  pyodide.FS.mkdirTree(point);
  pyodide.FS.mount(pyodide.FS.filesystems.NODEFS, { root }, point);
}

/** Show an installed package to the guest, and its bytecode, if it is still there, where sys.pycache_prefix makes Python look.
 * @param {{folder: string, point: string, bytecode?: string}} entry @param {(point: string, root: string) => void} show */
export function mountPackage({ folder, point, bytecode }, show) {
  show(point, folder);
  if (bytecode && fs.existsSync(bytecode)) show(`${BYTECODE}${point}`, bytecode);
}
