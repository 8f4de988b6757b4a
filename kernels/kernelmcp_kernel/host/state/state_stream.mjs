// The format of a state, between a guest and the pipe that it is written to or read from.
//
// 8 bytes magic, 4 bytes header length and 4 of its crc32 (little endian), header (JSON), blocks, end. A block: 4 bytes stored
// length, 4 bytes plain length, then the bytes, compressed with zstd, or plain if both lengths are equal. The end: 4 zero
// bytes, then the crc32 of all plain bytes.
import fs from "node:fs";
import zlib from "node:zlib";
import { StateError } from "./state_error.mjs";

const MAGIC = Buffer.from("KMSTATE1");
const LEAD_BYTES = 16;
const BLOCK_LEAD_BYTES = 8;
const BLOCK_BYTES = 1 << 20;
const MAX_HEADER_BYTES = 16 << 20;
// In one piece: with zlib's buffers of 16 kB, unpacking takes twice as long.
const FAST = { params: { [zlib.constants.ZSTD_c_compressionLevel]: 1 }, chunkSize: BLOCK_BYTES + (1 << 16) };
const MIN_CHUNK_BYTES = 64; // zlib's

/** Writes a state: the header, then what it describes, then the end. */
export class StateWriter {
  /** @param {number} fd blocking @param {boolean} isPlain not compressed: larger, and faster */
  constructor(fd, isPlain) {
    this.fd = fd;
    this.isPlain = isPlain;
    this.bytes = 0;
    this.crc = 0;
    /** @type {Uint8Array[]} what will be one block: small pieces are joined, or there would be little to compress */
    this.pieces = [];
    this.size = 0;
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

  /** @param {Uint8Array} bytes must not change until `end` */
  put(bytes) {
    for (let at = 0; at < bytes.length; ) {
      const piece = bytes.subarray(at, at + BLOCK_BYTES - this.size);
      this.pieces.push(piece);
      this.size += piece.length;
      at += piece.length;
      if (this.size === BLOCK_BYTES) this.#writeBlock();
    }
  }

  end() {
    if (this.size) this.#writeBlock();
    this.#writePair(0, this.crc);
  }

  #writeBlock() {
    const plain = this.pieces.length === 1 ? this.pieces[0] : Buffer.concat(this.pieces);
    this.pieces = [];
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
  /** @param {number} fd blocking */
  constructor(fd) {
    this.fd = fd;
    this.crc = 0;
    /** @type {Buffer} */
    this.block = Buffer.alloc(0);
    this.used = 0; // bytes of the block
  }

  /** @returns {any} the header, as yet unchecked */
  begin() {
    const lead = this.#read(LEAD_BYTES);
    if (lead.compare(MAGIC, 0, 8, 0, 8) !== 0) throw new StateError("it is not a saved session");
    const length = lead.readUInt32LE(8);
    if (length > MAX_HEADER_BYTES) throw new StateError("its header is damaged");
    const text = this.#read(length);
    if (zlib.crc32(text) !== lead.readUInt32LE(12)) throw new StateError("its header is damaged");
    return JSON.parse(text.toString("utf8"));
  }

  /** Fill this with what comes next. @param {Uint8Array} target */
  take(target) {
    for (let done = 0; done < target.length; ) {
      if (this.used === this.block.length) this.#readBlock();
      const count = Math.min(target.length - done, this.block.length - this.used);
      target.set(this.block.subarray(this.used, this.used + count), done);
      this.used += count;
      done += count;
    }
  }

  /** Check that everything has been read, as it was written. */
  end() {
    const [stored, crc] = this.#readPair();
    if (this.used !== this.block.length || stored !== 0 || crc !== this.crc) throw new StateError("its checksum does not match");
  }

  #readBlock() {
    const [stored, plain] = this.#readPair();
    if (!stored || stored > plain || plain > BLOCK_BYTES) throw new StateError("a block of it is damaged");
    const bytes = this.#read(stored);
    this.block = stored === plain ? bytes : unpack(bytes, plain);
    if (this.block.length !== plain) throw new StateError("a block of it is damaged");
    this.crc = zlib.crc32(this.block, this.crc);
    this.used = 0;
  }

  #readPair() {
    const pair = this.#read(BLOCK_LEAD_BYTES);
    return [pair.readUInt32LE(0), pair.readUInt32LE(4)];
  }

  /** @param {number} length */
  #read(length) {
    const target = Buffer.allocUnsafe(length);
    for (let done = 0; done < length; ) {
      const count = fs.readSync(this.fd, target, done, length - done, null);
      if (!count) throw new StateError("it is cut short");
      done += count;
    }
    return target;
  }
}

/** @param {Buffer} bytes @param {number} length */
function unpack(bytes, length) {
  try {
    return zlib.zstdDecompressSync(bytes, { maxOutputLength: length, chunkSize: Math.max(length, MIN_CHUNK_BYTES) });
  } catch {
    throw new StateError("a block of it is damaged");
  }
}
