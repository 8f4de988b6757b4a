// Which pages of the wasm heap have changed since a moment: a 128-bit hash of each is kept, 16 bytes for 4,096.
//
// The work is done by changed_pages.wat, a module with two memories: the heap, and one of its own. 64 MB take 4 ms.
import { PAGE } from "./differences.mjs";
import { StateError } from "./state_error.mjs";

/** @typedef {import("./differences.mjs").Run} Run */

// wat2wasm --enable-multi-memory changed_pages.wat
const WASM =
  "AGFzbQEAAAABCAFgA39/fwF/AhQCAWcEaGVhcAIAAQFnA293bgIAAQMCAQAHCAEEc2NhbgAACsUDAcIDAgR/BXv9DLF5N553yuuFPa6ywi/r1C" +
  "chCyAAIQMCQANAIAMgAU8NASADQQx0IQQgBEGAIGohBf0MAQAAAAIAAAADAAAABAAAACEH/QwFAAAABgAAAAcAAAAIAAAAIQj9DAkAAAAKAAAA" +
  "CwAAAAwAAAAhCf0MDQAAAA4AAAAPAAAAEAAAACEKA0AgB0EN/asBIAdBE/2tAf1QIAT9AAQA/VEgC/21ASEHIAhBDf2rASAIQRP9rQH9UCAE/Q" +
  "AEEP1RIAv9tQEhCCAJQQ39qwEgCUET/a0B/VAgBP0ABCD9USAL/bUBIQkgCkEN/asBIApBE/2tAf1QIAT9AAQw/VEgC/21ASEKIARBwABqIQQg" +
  "BCAFSQ0ACyAHIAj9DHfK64U9rrLCL+vUJ7FnVhb9tQH9rgEhByAHIAkgB0EP/a0B/VH9DD2ussIv69QnsWdWFrF5N579tQH9USEHIAcgCiAHQQ" +
  "39rQH9Uf0ML+vUJ7FnVhaxeTeed8rrhf21Af2uASEHIAcgA0EEdP0ARAEA/VH9UwRAIANBBHQgB/0LRAEAIAIgBkECdGogAzZCAQAgBkEBaiEG" +
  "CyADQQFqIQMMAAsLIAYL";
const MAX_PAGES = 2 ** 20;
const LIST = MAX_PAGES * 16; // behind the hashes, the numbers of the pages that a scan has found
const WASM_PAGE = 65536;
const ZEROS = Buffer.alloc(PAGE);

export class ChangedPages {
  /** @param {WebAssembly.Memory} heap */
  constructor(heap) {
    this.heap = heap;
    this.own = new WebAssembly.Memory({ initial: (LIST + MAX_PAGES * 4) / WASM_PAGE }); // pages that are not used take no space
    const module = new WebAssembly.Module(Buffer.from(WASM, "base64"));
    const { scan } = new WebAssembly.Instance(module, { g: { heap, own: this.own } }).exports;
    this.scan = /** @type {(first: number, end: number, list: number) => number} */ (scan);
    this.changed = new Uint8Array(MAX_PAGES);
    this.pages = 0; // of the heap at the moment from which changes count
  }

  /** Changes count from now on. */
  begin() {
    this.#scan();
    this.changed.fill(0);
    this.pages = this.heap.buffer.byteLength / PAGE;
  }

  /** The pages that have changed since `begin`, without new ones that are empty. @returns {Run[]} */
  find() {
    for (const page of this.#scan()) this.changed[page] = 1;
    const heap = Buffer.from(this.heap.buffer);
    const end = heap.length / PAGE;
    /** @type {Run[]} */
    const runs = [];
    for (let page = this.changed.indexOf(1); page >= 0 && page < end; page = this.changed.indexOf(1, page + 1)) {
      if (page >= this.pages && heap.compare(ZEROS, 0, PAGE, page * PAGE, page * PAGE + PAGE) === 0) continue;
      const last = runs.at(-1);
      if (last && last[0] + last[1] === page) last[1]++;
      else runs.push([page, 1]);
    }
    return runs;
  }

  /** The pages whose hash is another one than at the last scan; good until the next. */
  #scan() {
    const count = this.heap.buffer.byteLength / PAGE;
    if (count >= MAX_PAGES) throw new StateError("its heap is too large for automatic checkpoints");
    return new Uint32Array(this.own.buffer, LIST, this.scan(0, count, LIST));
  }
}
