// Pyodide's own modules. A bundle has them in it, in place of this module (build_bundle.mjs).
import promises from "node:fs/promises";
import { syncBuiltinESMExports } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { isUnneeded } from "./node_shims.mjs";

/** Call once the shims are installed.
 * @param {string} folder @returns {Promise<{loadPyodide: (options: any) => Promise<any>, factory: (settings: any) => Promise<any>}>}
 * factory: Emscripten's module factory */
export async function importPyodide(folder) {
  const { readFile } = promises;
  /** @type {any} */ (promises).readFile = async (/** @type {any} */ file, /** @type {any} */ options) =>
    isUnneeded(file) ? Buffer.alloc(0) : readFile(file, options);
  syncBuiltinESMExports(); // Pyodide calls the namespace of the module
  const { loadPyodide } = await import(pathToFileURL(path.join(folder, "pyodide.mjs")).href);
  const { default: factory } = await import(pathToFileURL(path.join(folder, "pyodide.asm.mjs")).href);
  return { loadPyodide, factory };
}
