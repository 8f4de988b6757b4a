// What saving and loading a state have in common: a guest's parts, and what must be equal in both guests.
//
// A state is the difference between an idle guest and its boot image: of the heap's pages that have something in the image, the
// pieces that differ (mostly reference counts: 64 kB of 4 MB in a small session); the other pages, whole; and what Emscripten
// and Pyodide hold in JavaScript. Only confined guests of one session write and read it.
import { ChangedPages } from "./changed_pages.mjs";
import { Differences } from "./differences.mjs";
import { OpenFiles } from "./open_files.mjs";
import { PAGE, PageOperations } from "./page_operations.mjs";
import { main } from "../node_shims.mjs";
import { References } from "./references.mjs";
import { StateError } from "./state_error.mjs";

/** @typedef {{id: string | null, previous: string | null, build_id: string, image_crc32: number, heap_bytes: number, runs: import("./differences.mjs").Run[],
 * stack: number, pins: Record<string, number>, interned: string[], references: import("./references.mjs").Reference[],
 * libraries: import("../libraries.mjs").Libraries | null, table: number, files: import("./open_files.mjs").Description,
 * clock: number}} Header
 * id: if others may be only what has changed since; previous: the id of the one that this is only what has changed since;
 * stack: address; pins: see References; table: length of the table of functions; clock: milliseconds since the session began */

/** A guest, as its state sees it. Make it when the guest has started. */
export class SessionState {
  /** @type {PageOperations | undefined} */
  #operations;

  /** @param {any} pyodide @param {import("../image.mjs").Image} image @param {import("../libraries.mjs").Recorder} recorder
   * @param {import("./finalizers.mjs").Finalizers} finalizers @param {Record<string, any>} known host functions by name */
  constructor(pyodide, image, recorder, finalizers, known) {
    this.module = pyodide._module;
    this.FS = pyodide.FS;
    this.image = image;
    this.recorder = recorder;
    this.finalizers = finalizers;
    this.references = new References(pyodide, known);
    this.files = new OpenFiles(pyodide.FS);
    this.stack = this.stackPointer();
    /** Where the stack is, of which an idle guest uses nothing: 10 MB. */
    this.unused = { first: Math.ceil(this.stackEnd() / PAGE), end: Math.floor(this.stack / PAGE) };
    this.differences = new Differences(this.module, image, this.unused);
    this.pins = this.references.pins();
    this.preparedAt = -1; // how many finalizers had run
    /** @type {{id: string, changes: ChangedPages} | undefined} the last whole state of which others are changes */
    this.base = undefined;
  }

  /** @returns {number} */
  stackPointer() {
    return this.#exports.emscripten_stack_get_current();
  }

  /** The lowest address that the stack may reach. @returns {number} */
  stackEnd() {
    return this.#exports.emscripten_stack_get_end();
  }

  get #exports() {
    return this.module.LDSO.loadedLibsByName.__main__.exports;
  }

  /** Made when they are needed: not at the start of each guest. */
  get operations() {
    this.#operations ??= new PageOperations(/** @type {WebAssembly.Memory} */ (main.memory), this.unused);
    return this.#operations;
  }

  /** The whole state that is saved now will be the base of others. @returns {string} its id */
  begin() {
    const changes = this.base?.changes ?? new ChangedPages(this.operations);
    this.base = undefined;
    changes.begin();
    this.base = { id: crypto.randomUUID(), changes };
    return this.base.id;
  }

  /** The pages that have changed since the base. @param {string} id */
  changes(id) {
    if (this.base?.id !== id) throw new StateError("what it is based on is unknown");
    return this.base.changes.find();
  }

  /** Prepare to load a state, in slices, unless something touches the heap meanwhile. @param {() => boolean} isStopped */
  async prepare(isStopped) {
    const { calls } = this.finalizers;
    await this.differences.prepare(() => isStopped() || this.finalizers.calls !== calls);
    this.preparedAt = calls;
  }

  /** Give the heap the image's content. */
  revert() {
    if (this.finalizers.calls !== this.preparedAt) this.dropPrepared();
    this.differences.revert();
  }

  /** Something touches the heap. */
  dropPrepared() {
    this.differences.prepared = undefined;
  }
}
