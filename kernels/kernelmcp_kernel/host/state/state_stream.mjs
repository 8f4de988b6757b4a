// The format of a state, between a guest and the pipe that it is written to or read from.
//
// 8 bytes magic, 4 bytes header length and 4 of its crc32 (little endian), header (JSON), blocks, end. A block: 4 bytes stored
// length, 4 bytes plain length, then the bytes, compressed with zstd, or plain if both lengths are equal. The end: 4 zero
// bytes, then the crc32 of all plain bytes.
import fs from "node:fs";
import zlib from "node:zlib";
import { BLOCK_BYTES } from "./page_operations.mjs";
import { StateError } from "./state_error.mjs";

const MAGIC = Buffer.from("KMSTATE1");
const LEAD_BYTES = 16;
const BLOCK_LEAD_BYTES = 8;
const MAX_HEADER_BYTES = 16 << 20;
// In one piece: with zlib's buffers of 16 kB, unpacking takes twice as long.
const FAST = { params: { [zlib.constants.ZSTD_c_compressionLevel]: 1 }, chunkSize: BLOCK_BYTES + (1 << 16) };
const SPARE_BYTES = 64; // without any, zlib makes a second buffer

/** Writes a state: the header, then what it describes, then the end. */
export class StateWriter {
  /** @param {number} fd blocking @param {boolean} isPlain not compressed: larger, and faster
   * @param {Buffer} block memory for one */
  constructor(fd, isPlain, block = Buffer.allocUnsafeSlow(BLOCK_BYTES)) {
    this.fd = fd;
    this.isPlain = isPlain;
    this.bytes = 0;
    this.crc = 0;
    this.block = block;
    this.size = 0; // bytes of it that are used
  }

  /** Refuses before anything is written. @param {any} header */
  begin(header) {
    const text = Buffer.from(JSON.stringify(header));
    if (text.length > MAX_HEADER_BYTES) throw new StateError("there are too many open files and JavaScript objects to describe");
    const lead = Buffer.alloc(LEAD_BYTES);
    MAGIC.copy(lead);
    lead.writeUInt32LE(text.length, 8);
    lead.writeUInt32LE(zlib.crc32(text), 12);
    this.#write(lead);
    this.#write(text);
  }

  /** @param {Uint8Array} bytes */
  put(bytes) {
    for (let done = 0; done < bytes.length; ) {
      if (this.size === BLOCK_BYTES) this.#writeBlock();
      const piece = bytes.subarray(done, done + BLOCK_BYTES - this.size);
      this.block.set(piece, this.size);
      this.size += piece.length;
      done += piece.length;
    }
  }

  /** Have some bytes written to one block. @param {number} most @param {(at: number) => number} fill writes them there, and returns
   * how many */
  write(most, fill) {
    if (this.size + most > BLOCK_BYTES) this.#writeBlock();
    this.size += fill(this.size);
  }

  end() {
    if (this.size) this.#writeBlock();
    this.#writePair(0, this.crc);
  }

  #writeBlock() {
    const plain = this.block.subarray(0, this.size);
    this.size = 0;
    this.crc = zlib.crc32(plain, this.crc);
    const packed = this.isPlain ? plain : zlib.zstdCompressSync(plain, FAST);
    const stored = packed.length < plain.length ? packed : plain;
    this.#writePair(stored.length, plain.length);
    this.#write(stored);
  }

  /** @param {number} first @param {number} second */
  #writePair(first, second) {
    const pair = Buffer.alloc(BLOCK_LEAD_BYTES);
    pair.writeUInt32LE(first, 0);
    pair.writeUInt32LE(second, 4);
    this.#write(pair);
  }

  /** @param {Uint8Array} bytes */
  #write(bytes) {
    for (let done = 0; done < bytes.length; ) done += fs.writeSync(this.fd, bytes, done);
    this.bytes += bytes.length;
  }
}

/** Reads a state in the order in which it was written. */
export class StateReader {
  /** @param {number} fd blocking @param {Buffer} block memory for one */
  constructor(fd, block = Buffer.allocUnsafeSlow(BLOCK_BYTES)) {
    this.fd = fd;
    this.crc = 0;
    this.block = block;
    this.size = 0; // bytes of it that are used
    this.taken = 0; // of these
    this.packed = Buffer.allocUnsafeSlow(BLOCK_BYTES);
  }

  /** @returns {any} the header, as yet unchecked */
  begin() {
    const lead = this.#read(LEAD_BYTES);
    if (lead.compare(MAGIC, 0, 8, 0, 8) !== 0) throw new StateError("it is not a saved session");
    const length = lead.readUInt32LE(8);
    if (!length || length > MAX_HEADER_BYTES) throw new StateError("its header is damaged");
    const text = this.#read(length);
    if (zlib.crc32(text) !== lead.readUInt32LE(12)) throw new StateError("its header is damaged");
    return JSON.parse(text.toString("utf8"));
  }

  /** Fill this with what comes next. @param {Uint8Array} target */
  take(target) {
    for (let done = 0; done < target.length; ) {
      if (this.taken === this.size) this.#readBlock();
      const piece = this.block.subarray(this.taken, Math.min(this.taken + target.length - done, this.size));
      target.set(piece, done);
      this.taken += piece.length;
      done += piece.length;
    }
  }

  /** What was written to one block: where in the block it is. @param {(at: number) => number} measure says how many bytes */
  read(measure) {
    if (this.taken === this.size) this.#readBlock();
    const at = this.taken;
    this.taken += measure(at);
    if (this.taken > this.size) throw new StateError("a block of it is damaged");
    return at;
  }

  /** Check that everything has been read, as it was written. */
  end() {
    const [stored, crc] = this.#readPair();
    if (this.taken !== this.size || stored !== 0 || crc !== this.crc) throw new StateError("its checksum does not match");
  }

  #readBlock() {
    const [stored, plain] = this.#readPair();
    if (!stored || stored > plain || plain > BLOCK_BYTES) throw new StateError("a block of it is damaged");
    const block = this.block.subarray(0, plain);
    if (stored === plain) this.#fill(block);
    else {
      const packed = this.#fill(this.packed.subarray(0, stored));
      if (unpack(packed, plain).copy(block) !== plain) throw new StateError("a block of it is damaged");
    }
    this.crc = zlib.crc32(block, this.crc);
    this.size = plain;
    this.taken = 0;
  }

  #readPair() {
    const pair = this.#read(BLOCK_LEAD_BYTES);
    return [pair.readUInt32LE(0), pair.readUInt32LE(4)];
  }

  /** @param {number} length */
  #read(length) {
    return this.#fill(Buffer.allocUnsafe(length));
  }

  /** @param {Buffer} target */
  #fill(target) {
    for (let done = 0; done < target.length; ) {
      const count = fs.readSync(this.fd, target, done, target.length - done, null);
      if (!count) throw new StateError("it is cut short");
      done += count;
    }
    return target;
  }
}

/** @param {Buffer} bytes @param {number} length */
function unpack(bytes, length) {
  try {
    return zlib.zstdDecompressSync(bytes, { maxOutputLength: length, chunkSize: length + SPARE_BYTES });
  } catch {
    throw new StateError("a block of it is damaged");
  }
}
