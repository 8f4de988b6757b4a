// Shared objects in a boot image: packages' compiled modules, which Emscripten loads as side modules. A heap that is put back
// holds their data and pointers to their functions, so each must lie again where it lay: in memory, and in the table of functions.
//
// Emscripten has no such thing. What it keeps of loaded modules is open on its module object (LDSO, GOT, the table); how it
// loads one is done here once more, without what writes to the heap, because that comes from the image.

const HIDDEN = /^__(em_js__|start_em_asm)/; // JavaScript in a module, which would have to be evaluated again

/** @typedef {{path: string, memory: number, table: number, size: number, handles: number[], global: boolean, needs: number[]}} Library
 * path: in the guest; memory, table: where it begins; size: entries of the table; needs: places in the list */
/** @typedef {{list: Library[], length: number, slots: [number, number, string][], symbols: Record<string, number>}} Libraries
 * length: of the table; slots: [entry of the table, library, export]; symbols: addresses by name */

/** @param {any} got Emscripten's table of addresses by name @returns {Record<string, number>} */
function addresses(got) {
  return Object.fromEntries(Object.entries(got).map(([name, entry]) => [name, /** @type {any} */ (entry).value]));
}

/** @param {any} module @returns {[string, any][]} what is loaded, in that order, but for the main module */
function loaded(module) {
  const all = Object.entries(module.LDSO.loadedLibsByName);
  return all.filter(([name, { exports }]) => name !== "__main__" && typeof exports === "object"); // else it has failed
}

/** Watches which shared objects are loaded, and where. Make it before Pyodide is loaded. */
export class Recorder {
  constructor() {
    /** @type {{exports: any, memory: number, table: number}[]} */
    this.instances = [];
    /** @type {Record<string, number>} as they were before the first one was loaded */
    this.symbols = {};
    const note = (/** @type {any} */ instance, /** @type {any} */ imports) => {
      if (!imports?.["GOT.mem"]) return;
      const { __memory_base: memory, __table_base: table } = imports.env;
      this.instances.push({ exports: instance.exports, memory, table });
    };
    WebAssembly.Instance = new Proxy(WebAssembly.Instance, {
      construct(target, [module, imports]) {
        const instance = new target(module, imports);
        note(instance, imports);
        return instance;
      },
    });
  }

  /** @param {any} module into which nothing has been loaded yet */
  watch(module) {
    this.module = module;
    this.tableLength = module.wasmTable.length;
    this.symbols = addresses(module.GOT);
  }

  /** @returns {Libraries | null} null: none is loaded. Throws for one that could not be loaded again. */
  describe() {
    const found = loaded(this.module);
    if (!found.length) {
      this.#slots([], []); // throws for an entry that is nobody's
      return null;
    }
    const list = found.map(([path, entry]) => this.#library(path, entry, found));
    const symbols = addresses(this.module.GOT);
    for (const [name, address] of Object.entries(this.symbols)) if (symbols[name] === address) delete symbols[name];
    return { list, length: this.module.wasmTable.length, slots: this.#slots(list, found), symbols };
  }

  /** @param {string} path @param {any} entry @param {[string, any][]} all @returns {Library} */
  #library(path, entry, all) {
    if (Object.keys(entry.exports).some((name) => HIDDEN.test(name))) throw new Error(`${path} holds JavaScript`);
    const first = Object.values(entry.exports).find((value) => typeof value === "function");
    const place = this.instances.find(({ exports }) => Object.values(exports).includes(first));
    if (!place) throw new Error(`${path}: where it was loaded is not known`);
    const { tableSize, neededDynlibs } = this.module.getDylinkMetadata(this.module.FS.readFile(path));
    const needs = neededDynlibs.map((/** @type {string} */ name) => all.findIndex(([each]) => each.endsWith(`/${name}`)));
    if (needs.includes(-1)) throw new Error(`${path} needs ${neededDynlibs.join(", ")}`);
    const handles = Object.entries(this.module.LDSO.loadedLibsByHandle).filter(([, each]) => each === entry);
    const { memory, table } = place;
    return { path, memory, table, size: tableSize, handles: handles.map(([key]) => +key), global: !!entry.global, needs };
  }

  /** What was added to the table one by one. @param {Library[]} list @param {[string, any][]} all @returns {Libraries["slots"]} */
  #slots(list, all) {
    /** @type {Map<Function, [number, string]>} */
    const owners = new Map();
    all.forEach(([, entry], place) => {
      for (const [name, value] of Object.entries(entry.exports))
        if (typeof value === "function" && !owners.has(value)) owners.set(value, [place, name]);
    });
    const own = new Set(list.flatMap(({ table, size }) => Array.from({ length: size }, (_, at) => table + at)));
    /** @type {Libraries["slots"]} */
    const slots = [];
    for (let at = this.tableLength ?? 0; at < this.module.wasmTable.length; at++) {
      const entry = this.module.wasmTable.get(at);
      if (own.has(at) || !entry) continue;
      const owner = owners.get(entry);
      if (!owner) throw new Error(`entry ${at} of the table is nobody's export: a ctypes callback exists`);
      slots.push([at, ...owner]);
    }
    return slots;
  }
}

/** Compile them, in the background.
 * @param {Library[]} list @param {(path: string) => Buffer} read @returns {Promise<WebAssembly.Module>[]} */
export function compileLibraries(list, read) {
  return list.map(({ path }) => WebAssembly.compile(/** @type {any} */ (read(path))));
}

/** Load them where they were, into a module whose heap is then put back.
 * @param {any} module @param {Libraries} libraries @param {WebAssembly.Module[]} compiled without those that are loaded already
 * @param {number} [present] how many are, of the first ones in the list */
export function restoreLibraries(module, libraries, compiled, present = 0) {
  const { wasmTable, LDSO, GOT } = module;
  /** @type {any[]} */
  const exported = [];
  libraries.list.forEach((library, place) => {
    if (place < present) {
      exported.push(LDSO.loadedLibsByName[library.path].exports);
      return;
    }
    if (wasmTable.length > library.table && library.size) throw new Error(`${library.path}: its place is taken`);
    if (library.size) wasmTable.grow(library.table + library.size - wasmTable.length);
    const scope = Object.assign({}, ...library.needs.map((each) => exported[each]));
    const instance = new WebAssembly.Instance(compiled[place - present], imports(module, library, scope));
    const exports = Object.assign(scope, module.relocateExports(instance.exports, library.memory));
    const entry = module.newDSO(library.path, undefined, exports);
    entry.global = library.global;
    if (library.global) module.mergeLibSymbols(exports, library.path);
    for (const handle of library.handles) LDSO.loadedLibsByHandle[handle] = entry;
    exported.push(exports);
  });
  if (wasmTable.length < libraries.length) wasmTable.grow(libraries.length - wasmTable.length);
  for (const [at, place, name] of libraries.slots) module.setWasmTableEntry(at, exported[place][name]);
  for (const [name, address] of Object.entries(libraries.symbols)) addressOf(GOT, name).value = address;
}

/** @param {any} got @param {string} name @returns {any} */
function addressOf(got, name) {
  got[name] ??= new WebAssembly.Global({ value: "i32", mutable: true }, -1);
  return got[name];
}

/** What a side module imports, as Emscripten's loadWebAssemblyModule gives it.
 * @param {any} module @param {Library} library @param {any} scope what it and those that it needs export */
function imports(module, library, scope) {
  const main = module.LDSO.loadedLibsByName.__main__.exports;
  /** @type {Record<string, Function>} */
  const late = {};
  const env = new Proxy(
    {},
    {
      get(_, /** @type {string} */ name) {
        if (name === "__memory_base") return library.memory;
        if (name === "__table_base") return library.table;
        if (name in main && !main[name].stub) return main[name];
        late[name] ??= (/** @type {any[]} */ ...given) => {
          const found = module.resolveGlobalSymbol(name).sym ?? scope[name];
          if (!found) throw new Error(`${library.path}: there is no ${name}`);
          return found(...given);
        };
        return late[name];
      },
    },
  );
  const got = new Proxy({}, { get: (_, /** @type {string} */ name) => addressOf(module.GOT, name) });
  return { env, "GOT.mem": got, "GOT.func": got, wasi_snapshot_preview1: env };
}
