// Text as bytes, and what browsers and Node both have for values.
(host, world) => {
  "use strict";
  const { define } = world;
  const MAX_RANDOM_BYTES = 65_536; // as the standard says

  const bytesOf = (data) => {
    if (data instanceof ArrayBuffer) return data;
    if (ArrayBuffer.isView(data)) return data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength);
    throw new TypeError("a string, an ArrayBuffer or a typed array is needed");
  };
  const joined = (one, other) => {
    if (one.byteLength === 0) return other;
    const all = new Uint8Array(one.byteLength + other.byteLength);
    all.set(new Uint8Array(one));
    all.set(new Uint8Array(other), one.byteLength);
    return all.buffer;
  };
  define("TextEncoder", class TextEncoder {
    encoding = "utf-8";
    encode(text = "") {
      return new Uint8Array(host.encode(String(text), "utf-8"));
    }
  });
  define("TextDecoder", class TextDecoder {
    #rest = new ArrayBuffer(0); // of a stream: the beginning of a character
    #hasBegun = false;
    constructor(label = "utf-8", options) {
      const { fatal, ignoreBOM } = options ?? {};
      Object.assign(this, { encoding: host.charset(String(label)), fatal: Boolean(fatal), ignoreBOM: Boolean(ignoreBOM) });
    }
    decode(data = new ArrayBuffer(0), options) {
      const more = Boolean(options?.stream);
      const bytes = joined(this.#rest, bytesOf(data));
      const end = bytes.byteLength - (more ? host.unfinished(bytes, this.encoding) : 0);
      const ignoreBOM = this.ignoreBOM || this.#hasBegun;
      this.#rest = bytes.slice(end);
      this.#hasBegun = more && (this.#hasBegun || end > 0);
      return host.decodeText(bytes.slice(0, end), this.encoding, this.fatal, ignoreBOM);
    }
  });
  define("btoa", (text) => host.btoa(String(text)));
  define("atob", (text) => host.atob(String(text)));
  define("crypto", {
    getRandomValues: (array) => {
      if (array.byteLength > MAX_RANDOM_BYTES) {
        const message = `The requested length exceeds ${MAX_RANDOM_BYTES} bytes`;
        throw Object.assign(new Error(message), { name: "QuotaExceededError" });
      }
      new Uint8Array(array.buffer, array.byteOffset, array.byteLength).set(new Uint8Array(host.random(array.byteLength)));
      return array;
    },
    randomUUID: () => host.uuid(),
  });
  define("structuredClone", (value) => {
    const seen = new Map();
    const clone = (one) => {
      if (typeof one === "function" || typeof one === "symbol") throw new TypeError(`${String(one)} could not be cloned`);
      if (typeof one !== "object" || one === null) return one;
      if (seen.has(one)) return seen.get(one);
      const keep = (copy) => (seen.set(one, copy), copy);
      if (one instanceof Date) return keep(new Date(one));
      if (one instanceof RegExp) return keep(new RegExp(one.source, one.flags));
      if (one instanceof ArrayBuffer) return keep(one.slice(0));
      if (ArrayBuffer.isView(one)) return keep(new one.constructor(bytesOf(one)));
      if (one instanceof Map) return [...one].reduce((copy, [key, item]) => copy.set(clone(key), clone(item)), keep(new Map()));
      if (one instanceof Set) return [...one].reduce((copy, item) => copy.add(clone(item)), keep(new Set()));
      if (one instanceof Error) return keep(Object.assign(new one.constructor(one.message), one));
      const copy = keep(Array.isArray(one) ? new Array(one.length) : {});
      for (const key of Object.keys(one)) copy[key] = clone(one[key]);
      return copy;
    };
    return clone(value);
  });
  Object.assign(world, { MAX_RANDOM_BYTES, bytesOf });
};
