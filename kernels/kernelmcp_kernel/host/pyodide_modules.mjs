// Pyodide's own modules. A bundle has them in it, in place of this module (build_bundle.mjs).
import path from "node:path";
import { pathToFileURL } from "node:url";

/** Call once the shims are installed.
 * @param {string} folder @returns {Promise<{loadPyodide: (options: any) => Promise<any>, factory: (settings: any) => Promise<any>}>}
 * factory: Emscripten's module factory */
export async function importPyodide(folder) {
  const { loadPyodide } = await import(pathToFileURL(path.join(folder, "pyodide.mjs")).href);
  const { default: factory } = await import(pathToFileURL(path.join(folder, "pyodide.asm.mjs")).href);
  return { loadPyodide, factory };
}
