// Node's Buffer: what files are read as, and bytes in their texts.
(host, world) => {
  "use strict";
  const { MAX_RANDOM_BYTES, bytesOf, define } = world;

  const isAt = (buffer, wanted, at) => wanted.every((byte, number) => buffer[at + number] === byte);
  class Buffer extends Uint8Array {
    static from(data, encodingOrOffset, length) {
      if (typeof data === "string") return new Buffer(host.encode(data, (typeof encodingOrOffset === "string" && encodingOrOffset) || "utf-8"));
      if (data instanceof ArrayBuffer) return new Buffer(data, encodingOrOffset, length);
      if (data?.type === "Buffer" && Array.isArray(data.data)) return Buffer.from(data.data);
      return new Buffer(ArrayBuffer.isView(data) ? data : Array.from(data));
    }
    static alloc(size, fill = 0, encoding = "utf-8") {
      return new Buffer(size).fill(fill, 0, size, encoding);
    }
    static allocUnsafe(size) {
      return new Buffer(size);
    }
    static isBuffer(value) {
      return value instanceof Buffer;
    }
    static byteLength(data, encoding) {
      return (typeof data === "string" ? Buffer.from(data, encoding) : data).byteLength;
    }
    static concat(list, size = list.reduce((sum, one) => sum + one.length, 0)) {
      const all = new Buffer(size);
      let at = 0;
      for (const one of list) {
        all.set(one.subarray(0, size - at), at);
        at = Math.min(size, at + one.length);
      }
      return all;
    }
    static compare(one, other) {
      const end = Math.min(one.length, other.length);
      for (let at = 0; at < end; at += 1) if (one[at] !== other[at]) return one[at] < other[at] ? -1 : 1;
      return Math.sign(one.length - other.length);
    }
    toString(encoding = "utf-8", start = 0, end = this.length) {
      return host.decode(bytesOf(this.subarray(start, end)), encoding);
    }
    toJSON() {
      return { type: "Buffer", data: Array.from(this) };
    }
    equals(other) {
      return Buffer.compare(this, other) === 0;
    }
    slice(start, end) {
      return this.subarray(start, end); // Node's shares the memory, and a Uint8Array's does not
    }
    fill(value, start = 0, end = this.length, encoding = "utf-8") {
      if (typeof value !== "string") return super.fill(value, start, end);
      const bytes = Buffer.from(value, encoding);
      for (let at = start; bytes.length && at < end; at += 1) this[at] = bytes[(at - start) % bytes.length];
      return this;
    }
    write(text, ...given) {
      const encoding = typeof given.at(-1) === "string" ? given.pop() : "utf-8";
      const [at = 0, length = this.length] = given;
      for (const [name, value] of Object.entries({ offset: at, length })) {
        if (Number.isInteger(value) && value >= 0 && value <= this.length) continue;
        const message = `The value of "${name}" is out of range. It must be >= 0 && <= ${this.length}. Received ${value}`;
        throw Object.assign(new RangeError(message), { code: "ERR_OUT_OF_RANGE" });
      }
      const bytes = Buffer.from(text, encoding);
      let end = Math.min(length, this.length - at, bytes.length);
      if (/^(utf-?8)?$/i.test(encoding)) while ((bytes[end] & 0xc0) === 0x80) end -= 1; // whole characters only
      if (/^(ucs-?2|utf-?16le)$/i.test(encoding)) end -= end % 2;
      this.set(bytes.subarray(0, end), at);
      return end;
    }
    indexOf(value, from = 0, encoding) {
      if (typeof from === "string") return this.indexOf(value, 0, from);
      if (typeof value === "number") return super.indexOf(value, from);
      const wanted = typeof value === "string" ? Buffer.from(value, encoding) : value;
      const first = from < 0 ? Math.max(0, from + this.length) : from;
      for (let at = first; at + wanted.length <= this.length; at += 1) if (isAt(this, wanted, at)) return at;
      return -1;
    }
    lastIndexOf(value, from = this.length, encoding) {
      if (typeof from === "string") return this.lastIndexOf(value, this.length, from);
      if (typeof value === "number") return super.lastIndexOf(value, from);
      const wanted = typeof value === "string" ? Buffer.from(value, encoding) : value;
      const last = from < 0 ? from + this.length : from;
      for (let at = Math.min(last, this.length - wanted.length); at >= 0; at -= 1) if (isAt(this, wanted, at)) return at;
      return -1;
    }
    includes(value, from, encoding) {
      return this.indexOf(value, from, encoding) >= 0;
    }
  }
  for (const [name, get, size] of [["UInt8", "Uint8", 1], ["Int8", "Int8", 1], ["UInt16", "Uint16", 2], ["Int16", "Int16", 2],
    ["UInt32", "Uint32", 4], ["Int32", "Int32", 4], ["Float", "Float32", 4], ["Double", "Float64", 8]]) {
    for (const order of size === 1 ? [""] : ["LE", "BE"]) {
      const view = (buffer) => new DataView(buffer.buffer, buffer.byteOffset, buffer.byteLength);
      const accessor = (verb, call) =>
        Object.defineProperty(Buffer.prototype, `${verb}${name}${order}`, { value: call, writable: true, configurable: true });
      accessor("read", function (at = 0) {
        return view(this)[`get${get}`](at, order === "LE");
      });
      accessor("write", function (value, at = 0) {
        view(this)[`set${get}`](at, value, order === "LE");
        return at + size;
      });
    }
  }
  define("Buffer", Buffer);
  world.isBuffer = (value) => value instanceof Buffer;

  class Hash {
    #parts = [];
    constructor(algorithm) {
      this.algorithm = String(algorithm);
      host.hash(this.algorithm, new ArrayBuffer(0)); // throws for one that there is not
    }
    update(data, encoding) {
      this.#parts.push(typeof data === "string" ? Buffer.from(data, encoding) : Buffer.from(bytesOf(data)));
      return this;
    }
    digest(encoding) {
      const bytes = Buffer.from(host.hash(this.algorithm, bytesOf(Buffer.concat(this.#parts))));
      return encoding ? bytes.toString(encoding) : bytes;
    }
  }
  Object.assign(crypto, {
    createHash: (algorithm) => new Hash(algorithm),
    randomBytes: (size) => {
      const bytes = Buffer.alloc(size);
      for (let at = 0; at < size; at += MAX_RANDOM_BYTES) crypto.getRandomValues(bytes.subarray(at, at + MAX_RANDOM_BYTES));
      return bytes;
    },
    randomInt: (least, end) => {
      const [from, to] = end === undefined ? [0, least] : [least, end];
      return from + (crypto.getRandomValues(new Uint32Array(1))[0] % (to - from));
    },
  });
};
