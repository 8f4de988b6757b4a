// QuickJS with the world that cells find in it: to evaluate a script, wait for a promise, call what world/entry_points.js gives.
import fs from "node:fs";
import { Crossing, outOfMemory } from "./crossing.mjs";

const MAX_STACK_BYTES = 256 * 1024;
const JOBS_AT_ONCE = 1000;
// Of the context, in which its generator of random numbers is.
const SEARCHED_BYTES = 1024;
const WORLD = ["inspect", "format", "console", "time", "bytes", "buffer", "files", "network", "tools", "modules", "entry_points"];

/** @typedef {import("quickjs-emscripten-core").QuickJSHandle} Handle */
/** @typedef {(...values: any[]) => string | number | boolean | Uint8Array | Promise<string> | void} Service what the host
 * does for a cell's world: it takes and gives strings, numbers and bytes; a promise is one there, too */
/** @typedef {{name: string, message: string, stack: string}} Fault an exception of a cell's */

export class Thrown extends Error {
  /** @param {Fault} fault */
  constructor(fault) {
    super(fault.message);
    this.fault = fault;
  }
}

export class Realm {
  /** @param {import("./engine.mjs").Engine} engine @param {Record<string, Service>} services
   * @param {() => boolean} isInterrupted asked often while anything runs
   * @param {() => void} onProgress called when a service's promise has been settled */
  constructor(engine, services, isInterrupted, onProgress) {
    this.engine = engine;
    this.onProgress = onProgress;
    this.isInterrupted = isInterrupted;
    this.underWay = 0; // promises of services that are not settled
    this.runtime = engine.runtime;
    this.runtime.setMaxStackSize(MAX_STACK_BYTES);
    this.context = engine.context;
    this.crossing = new Crossing(this.context);
    this.outOfMemory = this.context.newError(outOfMemory());
    this.kernel = this.#makeWorld(services);
    engine.askWhileRunning(isInterrupted);
    this.runtime.setModuleLoader(
      (name) => String(services.moduleSource(name, this.call("names", name))),
      (from, name) => (from === "node:modules" ? name : this.call("moduleName", String(services.modulePath(from, name)), from)),
    );
  }

  /** @param {string} text @param {string} name @returns {Handle} Throws Thrown. */
  evaluate(text, name) {
    return this.#unwrap(this.context.evalCode(text, name, { type: "global", backtraceBarrier: true }));
  }

  /** Call what world/entry_points.js has under a name, with strings, numbers and handles; its string.
   * @param {string} name @param {(string | number | Handle)[]} values @returns {string} Throws Thrown. */
  call(name, ...values) {
    const method = this.context.getProp(this.kernel, name);
    const handles = values.map((value) => (typeof value === "object" ? value.dup() : this.crossing.give(value)));
    const result = this.context.callFunction(method, this.context.undefined, handles);
    for (const handle of [method, ...handles]) handle.dispose();
    const found = this.#unwrap(result);
    try {
      return String(this.crossing.take(found) ?? "");
    } finally {
      found.dispose();
    }
  }

  /** Let everything go on that can. Errors there are nobody's. Once it is interrupted, what runs is ended: each of the
   * functions that go on and on is asked before long. */
  runJobs() {
    while (this.runtime.hasPendingJob()) {
      this.isInterrupted(); // short jobs would ask seldom
      const done = this.runtime.executePendingJobs(JOBS_AT_ONCE);
      if (done.error) done.error.dispose();
    }
  }

  /** What has become of a value: itself where it is no promise. Throws Thrown when it was rejected.
   * @param {Handle} value @returns {Handle | undefined} undefined while it is pending */
  settled(value) {
    const state = this.context.getPromiseState(value);
    if (state.type === "pending") return undefined;
    if (state.type === "rejected") throw new Thrown(this.#fault(state.error));
    return state.value;
  }

  /** @param {Handle} value */
  isPromise(value) {
    const state = this.context.getPromiseState(value);
    if (state.type === "pending") return true;
    const isOne = state.type === "rejected" || !state.notAPromise;
    if (state.type === "rejected") state.error.dispose();
    else if (isOne) state.value.dispose();
    return isOne;
  }

  /** Addresses that Node's side holds: equal in all guests that have started, because each allocates the same. */
  pins() {
    const { context, crossing, kernel, outOfMemory, runtime } = this;
    const parts = { ctx: /** @type {any} */ (context).ctx, rt: /** @type {any} */ (runtime).rt, kernel, outOfMemory };
    const all = { ...parts, quoted: crossing.quoted, joined: crossing.joined };
    return Object.fromEntries(Object.entries(all).map(([name, { value }]) => [name, Number(value)]));
  }

  /** Have Math.random go on with other numbers. QuickJS has no function for it: its generator is what goes from one value to
   * the next by xorshift, in its context. Throws if it is not there: two sessions would draw the same numbers. */
  reseed() {
    const { ctx } = this.pins();
    const numbers = () => new BigUint64Array(this.engine.memory.buffer, ctx, SEARCHED_BYTES / 8);
    const before = numbers().slice();
    this.call("random");
    const after = numbers();
    const place = before.findIndex((value, at) => value !== after[at] && nextRandom(value) === after[at]);
    if (place < 0) throw new Error("QuickJS's random numbers are not where they were");
    crypto.getRandomValues(after.subarray(place, place + 1));
  }

  /** @param {Record<string, Service>} services @returns {Handle} */
  #makeWorld(services) {
    const { context } = this;
    const world = context.newObject();
    const host = context.newObject();
    const memory = { memorySize: () => this.engine.size, memoryUsed: () => this.#usedBytes() };
    for (const [name, service] of Object.entries({ ...services, ...memory })) context.setProp(host, name, this.#function(name, service));
    context.setProp(host, "compile", this.#compiler());
    let last = context.undefined;
    for (const name of WORLD) {
      const file = new URL(`world/${name}.js`, import.meta.url);
      const make = this.evaluate(fs.readFileSync(file, "utf-8"), `node:${name}`);
      last = this.#unwrap(context.callFunction(make, context.undefined, host, world));
      make.dispose();
    }
    return last;
  }

  #usedBytes() {
    const usage = this.runtime.computeMemoryUsage();
    const used = usage.consume((all) => this.context.getProp(all, "memory_used_size"));
    return used.consume((bytes) => this.context.getNumber(bytes));
  }

  /** A file of the session's as a function of `module`. */
  #compiler() {
    return this.#guarded("compile", (...handles) => {
      const [code, file] = handles.map((handle) => String(this.crossing.take(handle)));
      return this.context.evalCode(`(function (module, exports, require, __filename, __dirname) { ${code}\n})`, file);
    });
  }

  /** @param {string} name @param {Service} service @returns {Handle} */
  #function(name, service) {
    const { context } = this;
    return this.#guarded(name, (...handles) => {
      const answer = service(...handles.map((handle) => this.crossing.take(handle)));
      if (!(answer instanceof Promise)) return this.crossing.give(answer);
      const promise = context.newPromise();
      this.underWay += 1;
      void answer.then((text) => {
        this.#settle(promise, text);
        this.underWay -= 1;
        this.onProgress();
      });
      return promise.handle;
    });
  }

  /** A function whose errors are QuickJS's. They need memory as well: the bindings' own conversion leaves QuickJS half-way
   * when there is none. @param {string} name @param {(...handles: Handle[]) => any} act */
  #guarded(name, act) {
    return this.context.newFunction(name, (...handles) => {
      try {
        return act(...handles);
      } catch (error) {
        return { error: this.#errorOf(error) };
      }
    });
  }

  /** @param {unknown} error @returns {Handle} */
  #errorOf(error) {
    const { name, message } = /** @type {Error} */ (error);
    try {
      return this.context.newError({ name, message });
    } catch {
      return this.outOfMemory.dup();
    }
  }

  /** Also while all is to end: what throws here would end the process.
   * @param {import("quickjs-emscripten-core").QuickJSDeferredPromise} promise @param {string} text */
  #settle(promise, text) {
    this.engine.granted(() => {
      try {
        this.crossing.give(text).consume((given) => promise.resolve(given));
      } catch (error) {
        this.#errorOf(error).consume((given) => promise.reject(given));
      }
    });
  }

  /** @param {any} result @returns {Handle} Throws Thrown. */
  #unwrap(result) {
    if (!result.error) return result.value;
    throw new Thrown(this.#fault(result.error));
  }

  /** @param {Handle} error disposed of here @returns {Fault} */
  #fault(error) {
    this.engine.release();
    try {
      const { name, message, stack } = JSON.parse(this.engine.granted(() => this.#said(error)));
      return { name: String(name), message: String(message), stack: String(stack) };
    } catch {
      // There is no memory, it was interrupted again, or the cell has broken what says it.
      const [name, message] = [this.#text(error, "name"), this.#text(error, "message")];
      return { name: name || "Error", message: message || "what was thrown cannot be shown", stack: "" };
    } finally {
      error.dispose();
      this.engine.keepReserve();
    }
  }

  /** @param {Handle} error @returns {string} JSON; none when it could not be said, which is no error to be said in turn */
  #said(error) {
    const method = this.context.getProp(this.kernel, "fault");
    const result = this.context.callFunction(method, this.context.undefined, error);
    method.dispose();
    const said = result.error ?? result.value;
    try {
      return result.error ? "" : String(this.crossing.take(said));
    } finally {
      said.dispose();
    }
  }

  /** @param {Handle} object @param {string} name */
  #text(object, name) {
    try {
      if (this.context.typeof(object) !== "object") return "";
      const found = this.context.getProp(object, name);
      const text = this.context.typeof(found) === "string" ? this.crossing.take(found) : "";
      found.dispose();
      return text;
    } catch {
      return "";
    }
  }
}

/** xorshift64, as QuickJS has it. @param {bigint} value */
function nextRandom(value) {
  let next = value ^ (value >> 12n);
  next = BigInt.asUintN(64, next ^ (next << 25n));
  return next ^ (next >> 27n);
}
