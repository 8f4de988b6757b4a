// QuickJS's WebAssembly: its memory, of which Node's side of it asks for some too, and how often it asks whether to go on.
import variant from "@jitl/quickjs-ng-wasmfile-release-sync";
import { newQuickJSWASMModuleFromVariant, newVariant } from "quickjs-emscripten-core";
import { outOfMemory } from "./crossing.mjs";

// Kept back for those who say that there is no more.
const RESERVE_BYTES = 1024 * 1024;
// Kept back for a cell that begins when there is no more: so much it takes to read one, and to let something go.
const ROOM_BYTES = 1024 * 1024;
// What QuickJS counts down from, in jumps and calls, until it asks. Each may take a while (a parse, a copy), so that the
// number follows from how long the last ones took.
const COUNTED_FROM = 10_000;
const MOST_BETWEEN = 50;
const BETWEEN_ENDS = 1; // each of the functions that go on is to meet its end
const WANTED_MS = 1;
const SEARCHED_BYTES = 1024;

// Compiled by other threads while this one loads the rest. Its types are those of a CommonJS module, whose default Node takes apart.
// Emscripten puts the program's path into the memory, and what follows it lies elsewhere with another one: a state would fit no
// other folder.
const emscriptenModule = /** @type {any} */ ({ thisProgram: "javascript" });
const loading = newQuickJSWASMModuleFromVariant(newVariant(/** @type {any} */ (variant), { emscriptenModule }));

export class Engine {
  static async make() {
    return new Engine(await loading);
  }

  /** @param {any} quickjs */
  constructor(quickjs) {
    this.memory = /** @type {WebAssembly.Memory} */ (quickjs.getWasmMemory());
    this.runtime = /** @type {import("quickjs-emscripten-core").QuickJSRuntime} */ (quickjs.newRuntime());
    this.context = this.runtime.newContext();
    this.runtime.context = this.context; // or it makes another one to count the memory
    this.words = new Int32Array(this.memory.buffer);
    this.counter = 0;
    this.between = 1;
    this.askedAt = 0;
    this.reserve = 0;
    this.room = 0;
    const { module } = quickjs;
    this.free = module._free;
    this.allocate = module._malloc;
    // The bindings write where they are told to, and 0 is QuickJS's own data.
    module._malloc = (/** @type {number} */ size) => {
      const found = this.allocate(size) || (this.release(), this.allocate(size));
      if (!found) throw outOfMemory();
      return found;
    };
    this.keepReserve();
    this.end();
  }

  /** Of the memory, up to the last byte that is not zero. */
  usedBytes() {
    const words = new Int32Array(this.memory.buffer);
    let end = words.length;
    while (end > 0 && words[end - 1] === 0) end -= 1;
    return 4 * end;
  }

  /** Make the memory at least as large, at once: Emscripten's second step would be too large near the limit. What this
   * allocates for it is not freed: a state is put over it. @param {number} bytes @returns {boolean} */
  grow(bytes) {
    return this.size >= bytes || (this.allocate(bytes - this.usedBytes()) !== 0 && this.size >= bytes);
  }

  get size() {
    return this.memory.buffer.byteLength;
  }

  /** A cell begins. */
  begin() {
    const found = this.allocate(ROOM_BYTES / 2);
    this.free(found || this.room); // which nothing is, when it is 0
    if (!found) this.room = 0;
  }

  /** A cell has ended. */
  end() {
    this.room ||= this.allocate(ROOM_BYTES);
  }

  /** Take the reserve again, if there is room. */
  keepReserve() {
    this.reserve ||= this.allocate(RESERVE_BYTES);
  }

  /** Give the reserve to whoever is to say what has happened. */
  release() {
    if (this.reserve) this.free(this.reserve);
    this.reserve = 0;
  }

  /** Ask often enough while anything runs. @param {() => boolean} isToEnd */
  askWhileRunning(isToEnd) {
    this.runtime.setInterruptHandler(() => this.#seek());
    this.context.unwrapResult(this.context.evalCode(`for (let i = 0; i <= ${COUNTED_FROM}; i++);`)).dispose();
    this.runtime.setInterruptHandler(() => {
      const ends = isToEnd();
      this.#pace(ends);
      return ends;
    });
    this.#count(1);
  }

  /** Where QuickJS counts: the one place of its context that has the whole count when it asks. Were there none, it would ask
   * as seldom as it does of itself. */
  #seek() {
    const { value } = /** @type {any} */ (this.context).ctx;
    const places = new Int32Array(this.memory.buffer, value, SEARCHED_BYTES / 4);
    const at = places.indexOf(COUNTED_FROM);
    if (places.indexOf(COUNTED_FROM, at + 1) < 0) this.counter = value / 4 + at;
    return false;
  }

  /** Run what says what has happened, which is to go on for a while even if all is to end. @template T @param {() => T} say */
  granted(say) {
    this.#count(COUNTED_FROM);
    try {
      return say();
    } finally {
      this.#count(1);
    }
  }

  /** @param {boolean} ends what runs is to end, all of it */
  #pace(ends) {
    const now = performance.now();
    const wanted = Math.min(2 * this.between, MOST_BETWEEN, Math.floor((this.between * WANTED_MS) / (now - this.askedAt)));
    this.between = ends ? BETWEEN_ENDS : Math.max(1, wanted);
    this.askedAt = now;
    this.#count(this.between);
  }

  /** @param {number} jumps until QuickJS asks */
  #count(jumps) {
    if (!this.counter) return;
    if (this.words.buffer !== this.memory.buffer) this.words = new Int32Array(this.memory.buffer); // it has grown
    this.words[this.counter] = jumps;
  }
}
