// The boot image: the only module that saves and restores a wasm heap.
//
// File: 8 bytes magic, 4 bytes header length and 4 of its crc32 (little endian), header (JSON), Pyodide's snapshot header,
// then the heap's pages that are not all zero, run after run. The header holds {build_id, heap_bytes, snapshot_bytes, runs, crc32, libraries},
// where `runs` is [[start, length], ...] in the heap, `crc32` covers everything after the header, and `libraries` says which
// shared objects the heap belongs to (libraries.mjs), or is null.
import fs from "node:fs";
import path from "node:path";
import zlib from "node:zlib";
import { compileLibraries, restoreLibraries } from "./libraries.mjs";

const MAGIC = Buffer.from("KMIMAGE2");
const LEAD_BYTES = 16;
const PAGE = 4096;
const ZEROS = Buffer.alloc(64 * 1024);
const MAX_HEADER_BYTES = 16 << 20;

/** Raised for an image that must not be loaded; the kernel process rebuilds it. */
export class ImageError extends Error {}

/** Runs of pages that are not all zero. @param {Buffer} heap @returns {[number, number][]} */
function occupiedRuns(heap) {
  /** @type {[number, number][]} */
  const runs = [];
  for (let start = 0; start < heap.length; start += PAGE) {
    const length = Math.min(PAGE, heap.length - start);
    if (heap.compare(ZEROS, 0, length, start, start + length) === 0) continue;
    const last = runs.at(-1);
    if (last && last[0] + last[1] === start) last[1] += length;
    else runs.push([start, length]);
  }
  return runs;
}

/** Write a snapshot made by Pyodide's makeMemorySnapshot() as an image file.
 * @param {string} file @param {Uint8Array} snapshot @param {string} buildId
 * @param {import("./libraries.mjs").Libraries | null} libraries */
export function saveImage(file, snapshot, buildId, libraries) {
  const bytes = Buffer.from(snapshot.buffer, snapshot.byteOffset, snapshot.byteLength);
  const heapOffset = bytes.readUInt32LE(4); // Pyodide's own layout: magic, offset of the heap, length of its JSON
  const heap = bytes.subarray(heapOffset);
  const runs = occupiedRuns(heap);
  const parts = [bytes.subarray(0, heapOffset), ...runs.map(([start, length]) => heap.subarray(start, start + length))];
  const crc32 = parts.reduce((crc, part) => zlib.crc32(part, crc), 0);
  const header = Buffer.from(
    JSON.stringify({ build_id: buildId, heap_bytes: heap.length, snapshot_bytes: heapOffset, runs, crc32, libraries }),
  );
  const lead = Buffer.alloc(LEAD_BYTES);
  MAGIC.copy(lead);
  lead.writeUInt32LE(header.length, 8);
  lead.writeUInt32LE(zlib.crc32(header), 12);
  fs.writeFileSync(file, Buffer.concat([lead, header, ...parts]));
}

/** @param {number} fd @param {Uint8Array} target @param {number} position */
function readFully(fd, target, position) {
  let done = 0;
  while (done < target.length) {
    const count = readSome(fd, target.subarray(done), position + done);
    if (count === 0) throw new ImageError("the image is cut short");
    done += count;
  }
}

/** @param {number} fd @param {Uint8Array} target @param {number} position */
function readSome(fd, target, position) {
  try {
    return fs.readSync(fd, target, 0, target.length, position);
  } catch (error) {
    throw new ImageError(`the image cannot be read: ${/** @type {NodeJS.ErrnoException} */ (error).code}`);
  }
}

/** @param {Uint8Array} heap @param {number} start @param {number} end at most as far as ZEROS is long */
function isClear(heap, start, end) {
  return Buffer.from(heap.buffer, heap.byteOffset, heap.byteLength).compare(ZEROS, 0, end - start, start, end) === 0;
}

/** @param {Uint8Array} heap @param {number} start @param {number} end */
function clear(heap, start, end) {
  for (let at = start; at < end; at += ZEROS.length) {
    const stop = Math.min(at + ZEROS.length, end);
    if (!isClear(heap, at, stop)) heap.fill(0, at, stop); // writing a page makes it private memory
  }
}

/** What a start-up may have written: below and above the stack, and as far as the stack has reached. The rest is not even read: that
 * costs a microsecond for each of 4,000 pages. @param {Uint8Array} heap @param {any} exports of the main module
 * @returns {[number, number][]} */
function writtenParts(heap, { sbrk, emscripten_stack_get_base, emscripten_stack_get_end }) {
  const end = emscripten_stack_get_end();
  let reached = emscripten_stack_get_base();
  while (reached - ZEROS.length > end && !isClear(heap, reached - ZEROS.length, reached)) reached -= ZEROS.length;
  return [
    [0, end],
    [reached - ZEROS.length, sbrk(0)],
  ];
}

/** @param {string} file */
function openImage(file) {
  try {
    return fs.openSync(file, "r");
  } catch (error) {
    throw new ImageError(`the image cannot be opened: ${/** @type {NodeJS.ErrnoException} */ (error).code}`);
  }
}

/** @typedef {{build_id: string, heap_bytes: number, snapshot_bytes: number, runs: [number, number][], crc32: number,
 * libraries: import("./libraries.mjs").Libraries | null}} Header */

/** An open image, checked as far as its header. It stays open: a session's state is what differs from it (state/). */
export class Image {
  /** @param {string} file @param {string} buildId what the image must have been built from
   * @param {{folder: string, point: string}[]} [packages] where its shared objects lie, and where the guest sees them */
  constructor(file, buildId, packages = []) {
    this.fd = openImage(file);
    const lead = Buffer.alloc(LEAD_BYTES);
    readFully(this.fd, lead, 0);
    if (lead.compare(MAGIC, 0, 8, 0, 8) !== 0) throw new ImageError("not a boot image");
    const length = lead.readUInt32LE(8);
    if (length > MAX_HEADER_BYTES) throw new ImageError("the image's header is damaged");
    const text = Buffer.alloc(length);
    readFully(this.fd, text, LEAD_BYTES);
    if (zlib.crc32(text) !== lead.readUInt32LE(12)) throw new ImageError("the image's header is damaged");
    /** @type {Header} */
    this.header = JSON.parse(text.toString("utf8"));
    if (this.header.build_id !== buildId) throw new ImageError("the image was built from other sources");
    this.position = LEAD_BYTES + length;
    this.snapshot = Buffer.alloc(this.header.snapshot_bytes);
    readFully(this.fd, this.snapshot, this.position);
    this.position += this.snapshot.length;
    this.compiled = compileLibraries(this.header.libraries?.list ?? [], (name) => readLibrary(name, packages));
    for (const each of this.compiled) each.catch(() => {}); // whoever waits for it is told
  }

  /** What loadPyodide needs to start from this image: the heap is read straight into wasm memory.
   * @param {(settings: any) => Promise<any>} factory Emscripten's module factory */
  loadOptions(factory) {
    return {
      _loadSnapshot: this.snapshot,
      createPyodideModule: async (/** @type {any} */ settings) => {
        delete settings.INITIAL_MEMORY; // Pyodide sets it to the snapshot's size, but its wasm brings a memory of its own
        const module = await factory(settings);
        if (this.header.heap_bytes > module.HEAPU8.length) module.growMemory(this.header.heap_bytes);
        await this.#loadLibraries(module);
        const { exports } = module.LDSO.loadedLibsByName.__main__;
        module.API.restoreSnapshot = () => this.#restore(module.HEAPU8, writtenParts(module.HEAPU8, exports));
        return module;
      },
    };
  }

  /** Verify the checksum before loading: a load that has begun cannot fall back. */
  check() {
    const rest = Buffer.alloc(this.header.runs.reduce((sum, [, length]) => sum + length, 0));
    readFully(this.fd, rest, this.position);
    this.#compare(zlib.crc32(rest, zlib.crc32(this.snapshot)));
  }

  /** @param {number} crc32 */
  #compare(crc32) {
    if (crc32 !== this.header.crc32) throw new ImageError("the image's checksum does not match");
  }

  /** @param {any} module */
  async #loadLibraries(module) {
    if (!this.header.libraries) return;
    try {
      restoreLibraries(module, this.header.libraries, await Promise.all(this.compiled));
    } catch (error) {
      throw new ImageError(`the image's shared objects cannot be loaded: ${error}`);
    }
  }

  /** @param {Uint8Array} heap @param {[number, number][]} written its parts that may not be zero
   * @returns {any} Pyodide's configuration as saved with the heap */
  #restore(heap, written) {
    let position = this.position;
    let crc = zlib.crc32(this.snapshot, 0);
    let restored = 0;
    const clearUntil = (/** @type {number} */ end) => {
      for (const [from, to] of written) clear(heap, Math.max(restored, from), Math.min(end, to));
    };
    for (const [start, length] of this.header.runs) {
      clearUntil(start);
      const target = heap.subarray(start, start + length);
      readFully(this.fd, target, position);
      crc = zlib.crc32(target, crc);
      position += length;
      restored = start + length;
    }
    clearUntil(heap.length);
    this.#compare(crc);
    const jsonLength = this.snapshot.readUInt32LE(8);
    return JSON.parse(this.snapshot.toString("utf8", 48, 48 + jsonLength));
  }
}

/** An image that fits; without one it takes two seconds more. @param {string} file @param {string} buildId */
export function findImage(file, buildId) {
  try {
    const image = new Image(file, buildId);
    image.check();
    return image;
  } catch (error) {
    if (error instanceof ImageError) return undefined;
    throw error;
  }
}

/** @param {string} name in the guest @param {{folder: string, point: string}[]} packages @returns {Buffer} */
function readLibrary(name, packages) {
  const found = packages.find(({ point }) => name.startsWith(`${point}/`));
  if (!found) throw new ImageError(`${name} is in no package`);
  try {
    return fs.readFileSync(path.join(found.folder, name.slice(found.point.length)));
  } catch (error) {
    throw new ImageError(`${name} cannot be read: ${/** @type {NodeJS.ErrnoException} */ (error).code}`);
  }
}
