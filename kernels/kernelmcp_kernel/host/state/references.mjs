// The JavaScript objects that the heap refers to by number: Pyodide's table of references, and of interned names.
import { StateError } from "./state_error.mjs";

const FIRST_NAME = 7; // entries below are Pyodide's own
const MAX_TEXT = 2000; // characters kept of an error's name or message
const MAX_NAME = 60; // characters of what is said of an object
const MAX_GONE = 100; // objects that are named
const MAX_PATH = 64;

/** @typedef {null | {path: string[]} | {known: string} | {value: string | number | boolean} | {bigint: string} |
 * {error: [name: string, message: string]} | {gone: string}} Reference path: of a global of JavaScript; known: a value that every
 * guest has; gone: an object that ends with its process */

/** @type {WeakMap<object, string>} what each dead object was */
const deadObjects = new WeakMap();

/** What an object becomes whose process has ended: any use of it is an error that says so. @param {string} what */
function deadObject(what) {
  const fail = () => {
    throw new Error(`this JavaScript object (${what}) belonged to a process that has ended`);
  };
  const dead = new Proxy(function () {}, {
    get(_, key) {
      if (typeof key === "symbol" || key === "then") return undefined;
      return key === "toString" ? () => `[${what}: gone]` : fail();
    },
    apply: fail,
    construct: fail,
    set: fail,
    has: () => false,
    ownKeys: fail,
  });
  deadObjects.set(dead, what);
  return dead;
}

/** @param {any} value @returns {string} its class, for a person */
function className(value) {
  try {
    return String(value.constructor?.name ?? typeof value).slice(0, MAX_NAME);
  } catch {
    return typeof value;
  }
}

/** @template T @param {(place: number) => T} get throws after the last @param {number} place @returns {T[]} */
function entries(get, place) {
  /** @type {T[]} */
  const found = [];
  for (; ; place++) {
    try {
      found.push(get(place));
    } catch {
      return found;
    }
  }
}

export class References {
  /** @param {any} pyodide @param {Record<string, any>} known host functions by name */
  constructor(pyodide, known) {
    this.module = pyodide._module;
    this.api = pyodide._api;
    const own = { API: this.api, abortSignalAny: this.api.abortSignalAny };
    /** @type {Map<string, any>} */
    this.byName = new Map(Object.entries({ ...own, ...known }));
    this.names = new Map([...this.byName].map(([name, value]) => [value, name]));
    this.first = this.api.getExpectedKeys().length; // entries below are the same in every guest
    this.pathKey = this.#findPathKey();
    this.globals = new Set(Object.getOwnPropertyNames(globalThis));
  }

  /** Globals of JavaScript that code has made: they are in no heap. @returns {string[]} */
  newGlobals() {
    const names = Object.getOwnPropertyNames(globalThis).filter((name) => !this.globals.has(name));
    return names.slice(0, MAX_GONE).map((name) => `globalThis.${name}`.slice(0, MAX_NAME));
  }

  /** @returns {Reference[]} */
  describe() {
    return entries((place) => this.module.__hiwire_get(place), this.first).map((value) => this.#describe(value));
  }

  /** Names of the objects that will be dead. @param {Reference[]} references */
  static gone(references) {
    const found = references.flatMap((entry) => (entry && "gone" in entry ? [String(entry.gone).slice(0, MAX_NAME)] : []));
    return found.slice(0, MAX_GONE);
  }

  /** Interned names; none is ever removed. @returns {string[]} */
  interned() {
    return entries((place) => this.module.__hiwire_immortal_get(place), FIRST_NAME);
  }

  /** Addresses of the objects that Pyodide's own JavaScript holds: a heap with others does not fit. @returns {Record<string, number>} */
  pins() {
    const values = Object.entries({ ...this.api, ...this.api.public_api });
    const held = values.filter(([, value]) => this.api.isPyProxy(value));
    return Object.fromEntries(held.map(([name, value]) => [name, this.module.PyProxy_getPtr(value)]));
  }

  /** @param {Reference[]} references @param {string[]} interned all, of which this guest has the first ones */
  restore(references, interned) {
    for (const name of interned.slice(this.interned().length)) this.module.__hiwire_immortal_add(name);
    references.forEach((entry, place) => {
      if (this.module.__hiwire_set(this.first + place, this.#restored(entry)) < 0)
        throw new StateError("there is no room for its JavaScript objects");
    });
  }

  /** @param {any} value @returns {Reference} */
  #describe(value) {
    if (value === null || value === undefined) return null;
    const path = this.#path(value);
    if (path) return { path };
    const known = this.names.get(value);
    if (known) return { known };
    if (["string", "number", "boolean"].includes(typeof value)) return { value };
    if (typeof value === "bigint") return { bigint: String(value) };
    const dead = deadObjects.get(value);
    if (dead) return { gone: dead };
    try {
      if (value instanceof Error) return { error: [text(value.name), text(value.message)] };
    } catch {
      // an object of the guest's, whose traps fail
    }
    return { gone: className(value) };
  }

  /** @param {any} value */
  #path(value) {
    try {
      return value[this.pathKey];
    } catch {
      return undefined;
    }
  }

  /** @param {Reference} entry @returns {any} */
  #restored(entry) {
    if (!entry) return null;
    if ("path" in entry) return this.#global(entry.path);
    if ("known" in entry) return this.byName.get(entry.known) ?? deadObject(text(entry.known));
    if ("value" in entry) return entry.value;
    if ("bigint" in entry) return BigInt(entry.bigint);
    if ("error" in entry) return Object.assign(new Error(text(entry.error[1])), { name: text(entry.error[0]) });
    return deadObject(text(entry.gone).slice(0, MAX_NAME));
  }

  /** @param {string[]} path */
  #global(path) {
    if (!Array.isArray(path) || path.length > MAX_PATH) throw new StateError("its JavaScript objects are damaged");
    return path.reduce((found, key) => found?.[key], this.api.config.jsglobals) ?? null;
  }

  /** The symbol by which a global of JavaScript tells its path. Pyodide keeps it to itself, but asks every object for it.
   * @returns {symbol} */
  #findPathKey() {
    const { module, api } = this;
    const [get, keys] = [module.__hiwire_get, api.getExpectedKeys];
    /** @type {symbol | undefined} */
    let found;
    const probe = new Proxy(
      {},
      {
        get(_, key) {
          if (typeof key === "symbol") found = key;
          return [];
        },
      },
    );
    api.getExpectedKeys = () => [];
    module.__hiwire_get = (/** @type {number} */ place) => {
      if (place) throw new Error("there are no more");
      return probe;
    };
    try {
      api.serializeHiwireState(() => null);
    } finally {
      module.__hiwire_get = get;
      api.getExpectedKeys = keys;
    }
    if (!found) throw new Error("Pyodide's key of global objects was not found");
    return found;
  }
}

/** @param {unknown} value */
function text(value) {
  return String(value).slice(0, MAX_TEXT);
}
