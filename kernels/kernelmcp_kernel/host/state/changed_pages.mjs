// Which pages of the wasm heap have changed since a moment: a hash of each is kept, 16 bytes for 4,096.
import { add } from "./differences.mjs";
import { PAGE } from "./page_operations.mjs";

/** @typedef {import("./differences.mjs").Run} Run */

const ZEROS = Buffer.alloc(PAGE);

export class ChangedPages {
  /** @param {import("./page_operations.mjs").PageOperations} operations */
  constructor(operations) {
    this.operations = operations;
    /** @type {Set<number>} */
    this.changed = new Set();
    this.pages = 0; // of the heap at the moment from which changes count
  }

  /** Changes count from now on. */
  begin() {
    this.operations.scan();
    this.changed.clear();
    this.pages = this.operations.heap.buffer.byteLength / PAGE;
  }

  /** The pages that have changed since `begin`, without new ones that are empty. @returns {Run[]} */
  find() {
    for (const page of this.operations.scan()) this.changed.add(page);
    const heap = Buffer.from(this.operations.heap.buffer);
    /** @type {Run[]} */
    const runs = [];
    for (const page of Uint32Array.from(this.changed).sort()) {
      if (page >= this.pages && heap.compare(ZEROS, 0, PAGE, page * PAGE, page * PAGE + PAGE) === 0) continue;
      add(runs, page);
    }
    return runs;
  }
}
