// Takes from the guest's JavaScript what its Python has no use for: the ways to Node's modules, and the network. Depth, not
// boundary: code that owns the engine finds others, and meets the permission model and the operating system there.

const REMOVED = [
  "BroadcastChannel",
  "EventSource",
  "WebSocket",
  "Worker",
  "fetch",
  "gc",
  "localStorage",
  "navigator",
  "sessionStorage",
];

/** Call once, after Pyodide has loaded; our own modules import `process` for themselves. */
export function cleanGlobals() {
  const { version, versions, platform, binding } = /** @type {any} */ (globalThis.process);
  // What Emscripten's system calls look at while the guest runs.
  const known = { version, versions: Object.freeze({ node: versions.node }), platform, binding, umask: () => 0o077, getuid: () => 1000 };
  // urllib3 takes an engine without this name for a browser.
  const rest = { ...known, release: Object.freeze({ name: "node" }) };
  Object.defineProperty(globalThis, "process", { value: Object.freeze(rest), writable: false, configurable: false });
  // Not all can be deleted (V8 holds on to `gc`), so what is left of them is a value.
  for (const name of REMOVED) {
    if (!Reflect.deleteProperty(globalThis, name)) /** @type {any} */ (globalThis)[name] = undefined;
  }
}
