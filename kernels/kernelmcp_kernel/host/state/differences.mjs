// The pages of the wasm heap that differ from the boot image, and their content in the image.
import fs from "node:fs";
import { PAGE } from "./page_operations.mjs";
import { StateError } from "./state_error.mjs";

const SLICE = 256; // pages read from the image at once
const PIECE = 16; // pages compared at once
const ZEROS = Buffer.alloc(PIECE * PAGE);

/** @typedef {[first: number, count: number]} Run pages that follow each other */

/** @param {Run[]} runs */
export function pagesIn(runs) {
  return runs.reduce((sum, [, count]) => sum + count, 0);
}

/** @param {Run[]} runs @param {number} page behind all of them */
export function add(runs, page) {
  const last = runs.at(-1);
  if (last && last[0] + last[1] === page) last[1]++;
  else runs.push([page, 1]);
}

/** Compares a heap with its boot image, whose file stays open: it may be replaced while the guest lives. */
export class Differences {
  /** @param {any} module Pyodide's @param {import("../image.mjs").Image} image @param {import("./page_operations.mjs").Range} unused
   * what nobody compares */
  constructor(module, image, unused) {
    this.module = module;
    this.unused = unused;
    this.fd = image.fd;
    let position = image.position;
    /** @type {{first: number, end: number, position: number}[]} pages in the image's file; all others are zero */
    this.stored = image.header.runs.map(([start, length]) => {
      const run = { first: start / PAGE, end: (start + length) / PAGE, position };
      position += length;
      return run;
    });
    this.scratch = Buffer.allocUnsafe(SLICE * PAGE);
    /** @type {{runs: Run[], content: Buffer} | undefined} what this guest's own start changed, and the image's content of it */
    this.prepared = undefined;
  }

  get heap() {
    return Buffer.from(this.module.HEAPU8.buffer);
  }

  /** All pages that differ. */
  find() {
    /** @type {Run[]} */
    let runs = [];
    for (runs of this.#search());
    return runs;
  }

  /** Find what this guest's own start changed, and read the image's content of it, so that loading a state is fast. In
   * slices of a few milliseconds, until `isStopped`: whatever touches the heap meanwhile makes the result wrong. A heap that
   * has grown has another buffer.
   * @param {() => boolean} isStopped */
  async prepare(isStopped) {
    /** @type {Run[]} */
    let runs = [];
    const { buffer } = this.module.HEAPU8;
    for (runs of this.#search()) {
      await new Promise((resolve) => setImmediate(resolve));
      if (isStopped() || this.module.HEAPU8.buffer !== buffer) return;
    }
    const content = Buffer.alloc(pagesIn(runs) * PAGE);
    let at = 0;
    for (const [first, count] of runs) {
      this.readImage(first, count, content.subarray(at, at + count * PAGE));
      at += count * PAGE;
    }
    this.prepared = { runs, content };
  }

  /** Give the heap the image's content. */
  revert() {
    const { heap, prepared } = this;
    this.prepared = undefined;
    if (!prepared) {
      for (const [first, count] of this.find()) this.readImage(first, count, heap.subarray(first * PAGE, (first + count) * PAGE));
      return;
    }
    let at = 0;
    for (const [first, count] of prepared.runs) {
      prepared.content.copy(heap, first * PAGE, at, at + count * PAGE);
      at += count * PAGE;
    }
  }

  /** Yields what has been found so far, slice after slice. @returns {Generator<Run[]>} */
  *#search() {
    const { heap, scratch, unused } = this;
    /** @type {Run[]} */
    const runs = [];
    const isSame = (/** @type {number} */ page, /** @type {number} */ count, /** @type {Buffer} */ content, /** @type {number} */ at) =>
      heap.compare(content, at * PAGE, (at + count) * PAGE, page * PAGE, (page + count) * PAGE) === 0;
    const ranges = [this.split([0, unused.first]), this.split([unused.end, heap.length / PAGE - unused.end])];
    for (const { first, count, position } of ranges.flatMap((each) => [...each]))
      for (let done = 0; done < count; done += SLICE) {
        const size = Math.min(SLICE, count - done);
        if (position !== undefined) this.#readStored(scratch.subarray(0, size * PAGE), position + done * PAGE);
        for (let at = 0; at < size; at += PIECE) {
          const piece = Math.min(PIECE, size - at);
          const page = first + done + at;
          const [content, place] = position === undefined ? [ZEROS, 0] : [scratch, at];
          if (isSame(page, piece, content, place)) continue;
          for (let each = 0; each < piece; each++) if (!isSame(page + each, 1, content, place + each)) add(runs, page + each);
        }
        yield runs;
      }
    yield runs;
  }

  /** The image's content of some pages. @param {number} first @param {number} count @param {Buffer} target */
  readImage(first, count, target) {
    for (const piece of this.split([first, count])) {
      const place = target.subarray((piece.first - first) * PAGE, (piece.first - first + piece.count) * PAGE);
      if (piece.position === undefined) place.fill(0);
      else this.#readStored(place, piece.position);
    }
  }

  /** The pieces of a run that are in the image's file, with their position, and those that are not, because they are all zero there.
   * @param {Run} run @returns {Generator<{first: number, count: number, position: number | undefined}>} */
  *split([begin, pages]) {
    let [low, high] = [0, this.stored.length]; // binary search for the first that ends after the run begins
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.stored[middle].end > begin) high = middle;
      else low = middle + 1;
    }
    const end = begin + pages;
    for (let first = begin; first < end; ) {
      const stored = this.stored[low];
      const isStored = stored !== undefined && stored.first <= first;
      const next = Math.min(end, isStored ? stored.end : (stored?.first ?? end));
      yield { first, count: next - first, position: isStored ? stored.position + (first - stored.first) * PAGE : undefined };
      if (isStored) low++;
      first = next;
    }
  }

  /** @param {Buffer} target @param {number} position */
  #readStored(target, position) {
    for (let done = 0; done < target.length; ) {
      const count = fs.readSync(this.fd, target, done, target.length - done, position + done);
      if (!count) throw new StateError("the boot image is cut short");
      done += count;
    }
  }
}
