// What is done with each byte of many pages, in a module with two memories: the heap, and one of its own (page_operations.wat).
//
// The other memory has one block of a state (state_stream.mjs), some pages of the boot image, a key and a hash of each page of
// the heap, and the numbers of those that were found.
import { StateError } from "./state_error.mjs";

// wat2wasm --enable-multi-memory page_operations.wat
const WASM =
  "AGFzbQEAAAABEgNgA39/fwF/YAF/AX9gAn9/AAIUAgFnBGhlYXACAAEBZwNvd24CAAEDBQQAAAECBycEBHNjYW4AAARwYWNrAAEMcGFja2VkX2J5dGVzAAIG" +
  "dW5wYWNrAAMKhgUE5AICBX8HeyAAIQMCQANAIAMgAU8NASADQQx0IQQgBEGAIGohBUGAgMQAIQYgBv0ARAEAIQz9DAAAAAAAAAAAAAAAAAAAAAAhDf0MAAAA" +
  "AAAAAAAAAAAAAAAAACEOA0AgBP0ABAAhCCAE/QAEECEJIAwhCiAG/QBEARAhCyAG/QBEASAhDCAIIAr9rgEhCiAIIAv9rgEhCCAJIAv9rgEhCyAJIAz9rgEh" +
  "CSANIAogC/3eASAKIAv93wH9zgH9zgEhDSAOIAggCf3eASAIIAn93wH9zgH9zgEhDiAGQSBqIQYgBEEgaiEEIAQgBUkNAAsgDSAO/Q0AAQIDBAUGBxAREhMU" +
  "FRYXIA0gDv0NCAkKCwwNDg8YGRobHB0eH/3OASENIA0gA0EEdP0ARAGAgEj9Uf1TBEAgA0EEdCAN/QtEAYCASCACIAdBAnRqIAM2QgEAIAdBAWohBwsgA0EB" +
  "aiEDDAALCyAHC4ABAwJ/AX4BeyACQSBqIQMDQCAA/QAEACAB/QBEAQD9USEGIAb9UwRAIAVCASAErYaEIQUgAyAG/QtEAQAgA0EQaiEDCyAAQRBqIQAgAUEQ" +
  "aiEBIARBAWohBCAEQT9xRQRAIAIgBTdDAQBCACEFIAJBCGohAgsgBEGAAkkNAAsgAwsoAEEgIAApQwEAeyAAKUMBCHt8IAApQwEQeyAAKUMBGHt8fKdBBHRq" +
  "C3MCA38BfiABQSBqIQIDQCABIARBA3RqKUMBACEFAkADQCAFUA0BIAAgBXqnQQR0aiEDIAMgA/0ABAAgAv0ARAEA/VH9CwQAIAJBEGohAiAFIAVCAX2DIQUM" +
  "AAsLIABBgAhqIQAgBEEBaiEEIARBBEkNAAsL";
export const PAGE = 4096;
export const BLOCK_BYTES = 1 << 20;
export const MAX_PACKED_BYTES = 32 + PAGE;
const IMAGE_BYTES = 1 << 16;
const KEY = BLOCK_BYTES + IMAGE_BYTES; // page_operations.wat has it as 0x110000
const KEY_BYTES = PAGE + 16;
const HASHES = KEY + (1 << 16); // 0x120000 there
const HASH_BYTES = 16;
const WASM_PAGE = 65536;
const MAX_PAGES = 2 ** 20;

/** @typedef {{first: number, end: number}} Range of pages */

export class PageOperations {
  /** @param {WebAssembly.Memory} heap @param {Range} unused what is not scanned */
  constructor(heap, unused) {
    this.heap = heap;
    this.unused = unused;
    this.own = new WebAssembly.Memory({ initial: HASHES / WASM_PAGE });
    crypto.getRandomValues(new Uint8Array(this.own.buffer, KEY, KEY_BYTES));
    const module = new WebAssembly.Module(Buffer.from(WASM, "base64"));
    this.functions = /** @type {Record<string, (...numbers: number[]) => number>} */ (
      /** @type {unknown} */ (new WebAssembly.Instance(module, { g: { heap, own: this.own } }).exports)
    );
  }

  /** Memory for a block, good until the next scan. */
  get block() {
    return Buffer.from(this.own.buffer, 0, BLOCK_BYTES);
  }

  /** Memory for pages of the boot image, good until the next scan. */
  get image() {
    return Buffer.from(this.own.buffer, BLOCK_BYTES, IMAGE_BYTES);
  }

  /** The pages whose hash is another one than at the last scan; good until the next. 35 MB take 8 ms. The hash is NH, twice,
   * with a random key: whatever has changed in a page, it is not seen with a probability of 2 to the power of -64. */
  scan() {
    const count = this.heap.buffer.byteLength / PAGE;
    if (count >= MAX_PAGES) throw new StateError("its heap is too large for automatic checkpoints");
    const list = HASHES + count * HASH_BYTES;
    const missing = list + count * Uint32Array.BYTES_PER_ELEMENT - this.own.buffer.byteLength;
    if (missing > 0) this.own.grow(Math.ceil(missing / WASM_PAGE));
    const { scan } = this.functions;
    const before = scan(0, this.unused.first, list);
    const behind = scan(this.unused.end, count, list + before * Uint32Array.BYTES_PER_ELEMENT);
    return new Uint32Array(this.own.buffer, list, before + behind);
  }

  /** Write to the block what differs in a page of the heap from a page of the image. @param {number} page @param {number} image
   * bytes from the beginning of `image` @param {number} at of the block @returns how many bytes, at most MAX_PACKED_BYTES */
  pack(page, image, at) {
    return this.functions.pack(page * PAGE, BLOCK_BYTES + image, at) - at;
  }

  /** How many bytes `pack` has written there. @param {number} at of the block */
  packedBytes(at) {
    return this.functions.packed_bytes(at);
  }

  /** Make a page of the heap, which is the image's, what it was. @param {number} page @param {number} at of the block */
  unpack(page, at) {
    this.functions.unpack(page * PAGE, at);
  }
}
