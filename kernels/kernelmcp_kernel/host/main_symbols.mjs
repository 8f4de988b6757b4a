// What Pyodide's main module exports, where Emscripten would place it: each function has an entry in the table of functions, each
// name an address in Emscripten's GOT, and what JavaScript gives to C as a function pointer is wrapped in WebAssembly.
//
// Emscripten does that name by name, at each start, for 8,600 names, of which a session without side modules asks for none, and it
// compiles a module for each of 259 wrappers. It is the same at each start, so the bundle knows it (light_pyodide.mjs).

/** @typedef {{addresses: number[], imported: [string, number][], wrapped: string[], length: number, wrappers: string}} MainSymbols
 * addresses: of the exports, in their order, 0 for what has none; imported: addresses of the names that the main module imports from
 * the GOT; wrapped: those of them that are JavaScript's, one name for each function; wrappers: a module, in base64, that puts them
 * into the table; length: of the table, then */

/** Place them, before anything else is added to the table. Names are found as if they had been merged.
 * @param {MainSymbols} symbols @param {any} exports @param {any} env what the main module imports, where side modules look names up
 * @param {any} got Emscripten's table of addresses by name */
export function placeSymbols({ addresses, imported, wrapped, length, wrappers }, exports, env, got) {
  const names = Object.keys(exports);
  if (names.length !== addresses.length) throw new Error("the main module is not the one of the bundle");
  const { __indirect_function_table: table } = exports;
  const begin = table.grow(length - table.length);
  names.forEach((name, at) => {
    if (addresses[at] >= begin && typeof exports[name] === "function") table.set(addresses[at], exports[name]);
  });
  const functions = Object.fromEntries(wrapped.map((name, at) => [at, env[name]]));
  new WebAssembly.Instance(new WebAssembly.Module(Buffer.from(wrappers, "base64")), { table: { table }, functions });
  for (const [name, address] of imported) got[name].value = address;
  Object.setPrototypeOf(env, exports);
  Object.setPrototypeOf(got, new Proxy(Object.create(null), { get: (_, name) => entryOf(name) }));

  /** @type {Map<string, number> | undefined} */
  let places;
  const entryOf = (/** @type {any} */ name) => {
    places ??= new Map(names.map((each, at) => [each, at]));
    const address = addresses[places.get(name) ?? -1];
    if (!address) return undefined;
    got[name] = new WebAssembly.Global({ value: "i32", mutable: true }, address);
    return got[name];
  };
}
