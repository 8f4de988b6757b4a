// What must be in place before Pyodide loads: stand-ins for the parts of Node that the permission model refuses with an
// exception. A refused call inside WebAssembly is fatal to the guest, so it gets an errno instead.
import fs from "node:fs";
import { answerErrors } from "./errno.mjs";
import { unlinkSuspended } from "./suspended_frames.mjs";

const ENOSYS = -52; // Emscripten's errno numbers are WASI's
const FAILURE = -1;

// WebAssembly imports that reach for processes, sockets or eval. They are depth, not boundary: the boundary is the OS.
const REFUSED = [
  /^_emscripten_system$/,
  /^emscripten_(run_script|async_run_script|async_load_script|async_wget|create_worker|websocket_|asm_const)/,
  /^__syscall_(socket|connect|bind|listen|accept4|sendto|recvfrom|sendmsg|recvmsg)/,
  /^(getaddrinfo|getnameinfo)$/,
];

/** @param {string} name */
function refusal(name) {
  if (name.startsWith("__syscall")) return ENOSYS;
  return /script_string/.test(name) ? 0 : FAILURE;
}

/** Replace refused imports in place: the object is also the table that Emscripten's dlsym looks names up in.
 * @param {Record<string, any>} env */
function refuseImports(env) {
  for (const name of Object.keys(env)) {
    if (typeof env[name] !== "function" || !REFUSED.some((pattern) => pattern.test(name))) continue;
    const code = refusal(name);
    const stub = Object.assign(() => code, { sig: env[name].sig });
    env[name] = stub;
  }
}

/** @type {{memory?: WebAssembly.Memory}} Pyodide's main module, once it is there: Emscripten keeps its memory to itself */
export const main = {};

/** The name of a file for which Pyodide asks in vain. */
export const NOTHING = "/nothing";

/** What Pyodide reads and nobody needs: also its wasm, 10 MB, since `installShims` has it compiled. @param {any} file */
export const isUnneeded = (file) => String(file) === NOTHING || String(file).endsWith("/pyodide.asm.wasm");

/** Install the shims; call once, before pyodide.mjs is imported.
 * @param {Promise<WebAssembly.Module>} compiled Pyodide's main module, which is being compiled while Node loads the rest
 * @param {boolean} refuse replace the imports that reach for processes, sockets or eval
 * @param {() => number} [check] CPython's signal check */
export function installShims(compiled, refuse, check) {
  // Pyodide asks for process.binding("constants") only to learn the open() flags.
  Object.defineProperty(process, "binding", {
    value: (/** @type {string} */ name) => {
      if (name === "constants") return { fs: fs.constants };
      throw new Error(`process.binding(${name}) is not available in the sandbox`);
    },
  });
  const instantiate = WebAssembly.instantiate;
  const patched = async (/** @type {any} */ source, /** @type {any} */ imports) => {
    if (!imports?.env?._emscripten_system) return instantiate.call(WebAssembly, source, imports);
    if (refuse) refuseImports(imports.env);
    answerErrors(imports.env);
    unlinkSuspended(imports.env, main);
    if (check) imports.env._Py_CheckEmscriptenSignals_Helper = Object.assign(check, { sig: "i" });
    WebAssembly.instantiate = instantiate;
    const module = await compiled;
    const instance = await instantiate(module, imports);
    main.memory = /** @type {any} */ (instance).exports.memory;
    return { module, instance };
  };
  WebAssembly.instantiate = /** @type {any} */ (patched);
}
