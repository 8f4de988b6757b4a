// How values are shown: `inspect`, as of Node's util. What it shows has bounds, and getters are not run.
(host, world) => {
  "use strict";
  const LINE = 72;
  const MAX_DEPTH = 5;
  const MAX_BUFFER = 50;
  const MAX_ITEMS = 100;
  const MAX_KEYS = 500;
  const MAX_STRING = 100_000;
  const MAX_CHARS = 1_000_000;
  const CUSTOM = Symbol.for("nodejs.util.inspect.custom");
  const TypedArray = Object.getPrototypeOf(Uint8Array);
  const SAID = { "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f", "\v": "\\v", "'": "\\'", "\\": "\\\\" };
  const escape = (one) => SAID[one] ?? (one.charCodeAt(0) < 256 ? `\\x${one.charCodeAt(0).toString(16).padStart(2, "0").toUpperCase()}` : `\\u${one.charCodeAt(0).toString(16)}`);
  const more = (count, what) => `... ${count} more ${what}${count === 1 ? "" : "s"}`;
  const quoted = (text) => {
    const shown = text.length > MAX_STRING ? text.slice(0, MAX_STRING) : text;
    const whole = `'${shown.replace(/['\\\x00-\x1f\x7f-\x9f]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, escape)}'`;
    return shown === text ? whole : `${whole}${more(text.length - MAX_STRING, "character")}`;
  };
  const primitive = (value) => {
    if (typeof value === "string") return quoted(value);
    if (typeof value === "bigint") return `${value}n`;
    return Object.is(value, -0) ? "-0" : String(value);
  };
  const keyed = (key) => {
    if (typeof key === "symbol") return `[${String(key)}]`;
    return /^[A-Za-z_$][\w$]*$/.test(key) ? key : quoted(key);
  };
  const nameOf = (value) => {
    const proto = Object.getPrototypeOf(value);
    if (proto === null) return null;
    const found = Object.getOwnPropertyDescriptor(proto, "constructor")?.value ?? value.constructor;
    const name = typeof found === "function" ? Object.getOwnPropertyDescriptor(found, "name")?.value : "";
    return typeof name === "string" ? name : "";
  };
  const ofBuffer = (buffer) => {
    const bytes = Array.from(buffer.subarray(0, MAX_BUFFER), (byte) => ` ${byte.toString(16).padStart(2, "0")}`);
    const rest = buffer.length > MAX_BUFFER ? ` ... ${more(buffer.length - MAX_BUFFER, "byte").slice(4)}` : "";
    return `<Buffer${bytes.join("")}${rest}>`;
  };
  const ofFunction = (value) => {
    const [text, name] = [Function.prototype.toString.call(value), nameOf(value) || "Function"];
    const own = Object.getOwnPropertyDescriptor(value, "name")?.value;
    const called = typeof own === "string" && own ? own : "";
    return text.startsWith("class") ? `[class ${called || "(anonymous)"}]` : `[${name}${called ? `: ${called}` : " (anonymous)"}]`;
  };

  class Shown {
    constructor(depth) {
      this.depth = depth;
      this.left = MAX_CHARS;
      this.path = [];
    }

    // What is in a value that is shown already is `[Circular]`, what is too deep or too much only named.
    text(value) {
      if ((typeof value !== "object" && typeof value !== "function") || value === null) return this.#took(primitive(value));
      if (this.path.includes(value)) return "[Circular]";
      if (this.left < 0) return "...";
      this.path.push(value);
      try {
        return this.#took(this.#ofObject(value));
      } catch {
        return "[cannot be shown]";
      } finally {
        this.path.pop();
      }
    }

    #took(text) {
      this.left -= text.length;
      return text;
    }

    #ofObject(value) {
      const custom = value[CUSTOM];
      if (typeof custom === "function") {
        const made = custom.call(value, this.depth - this.path.length, {}, world.inspect);
        return typeof made === "string" ? made : this.text(made);
      }
      const name = nameOf(value);
      const named = name === null ? "[Object: null prototype] " : name === "Object" || name === "" ? "" : `${name} `;
      if (value instanceof Error) return this.#and(this.#ofError(value), value);
      if (value instanceof Date) return this.#and(Number.isNaN(value.getTime()) ? "Invalid Date" : value.toISOString(), value);
      if (value instanceof RegExp) return this.#and(String(value), value);
      if (typeof value === "function") return this.#and(ofFunction(value), value);
      if (value instanceof Number || value instanceof Boolean || value instanceof String || value instanceof BigInt || value instanceof Symbol) {
        return `[${named.trim()}: ${primitive(value.valueOf())}]`;
      }
      if (value instanceof WeakMap || value instanceof WeakSet) return `${named}{ <items unknown> }`;
      if (this.path.length > this.depth + 1) return Array.isArray(value) ? "[Array]" : `[${named.trim() || "Object"}]`;
      if (Array.isArray(value)) return this.#listed(name === "Array" ? "" : `${named.trim()}(${value.length}) `, this.#ofArray(value), "[]");
      if (world.isBuffer?.(value)) return ofBuffer(value);
      if (value instanceof TypedArray) return this.#listed(`${named.trim()}(${value.length}) `, this.#first(value, value.length), "[]");
      if (value instanceof Map) return this.#listed(`${named.trim()}(${value.size}) `, this.#ofPairs(value), "{}");
      if (value instanceof Set) return this.#listed(`${named.trim()}(${value.size}) `, this.#first(value, value.size), "{}", true);
      if (value instanceof ArrayBuffer) return `${named}{ byteLength: ${value.byteLength} }`;
      return this.#listed(named, this.#ofKeys(value, Reflect.ownKeys(value)), "{}");
    }

    #ofError(error) {
      const { stack } = error;
      const head = String(error);
      const text = typeof stack === "string" && stack ? `${head}\n${stack.trimEnd()}` : `[${head}]`;
      const cause = Object.hasOwn(error, "cause") && this.path.length <= this.depth + 1 ? `\n[cause]: ${this.text(error.cause)}` : "";
      return `${text.length > MAX_STRING ? `${text.slice(0, MAX_STRING)}...` : text}${cause}`;
    }

    // What is shown by itself, and what it has been given besides.
    #and(text, value) {
      const parts = this.path.length > this.depth + 1 ? [] : this.#ofKeys(value, Object.keys(value));
      return parts.length ? this.#listed(`${text} `, parts, "{}") : text;
    }

    #first(values, size) {
      const parts = [];
      for (const value of values) {
        if (parts.length >= MAX_ITEMS || this.left < 0) break;
        parts.push(this.text(value));
      }
      return parts.length < size ? [...parts, more(size - parts.length, "item")] : parts;
    }

    #ofPairs(map) {
      const parts = [];
      for (const [key, value] of map) {
        if (parts.length >= MAX_ITEMS || this.left < 0) break;
        parts.push(`${this.text(key)} => ${this.text(value)}`);
      }
      return parts.length < map.size ? [...parts, more(map.size - parts.length, "item")] : parts;
    }

    #ofArray(array) {
      const parts = [];
      let at = 0;
      for (let empty = 0; at < array.length && at < MAX_ITEMS && this.left >= 0; at += 1) {
        if (!Object.hasOwn(array, at)) {
          if (empty) parts.pop();
          empty += 1;
          parts.push(`<${empty} empty item${empty === 1 ? "" : "s"}>`);
        } else {
          empty = 0;
          parts.push(this.text(array[at]));
        }
      }
      if (at < array.length) return [...parts, more(array.length - at, "item")];
      return [...parts, ...this.#ofKeys(array, Object.keys(array).filter((key) => !/^\d+$/.test(key)))];
    }

    #ofKeys(value, keys) {
      const parts = [];
      let seen = 0;
      for (const key of keys) {
        if (parts.length >= MAX_KEYS || this.left < 0) break;
        seen += 1;
        const found = Object.getOwnPropertyDescriptor(value, key);
        if (!found?.enumerable) continue;
        const both = found.get && found.set ? "[Getter/Setter]" : found.get ? "[Getter]" : "[Setter]";
        parts.push(`${keyed(key)}: ${found.get || found.set ? both : this.text(found.value)}`);
      }
      return seen < keys.length ? [...parts, more(keys.length - seen, "key")] : parts;
    }

    #listed(head, parts, [open, close], isOfItems = open === "[") {
      if (!parts.length) return `${head}${open}${close}`;
      const size = parts.reduce((sum, part) => sum + part.length + 2, head.length);
      if (size <= LINE && !parts.some((part) => part.includes("\n"))) return `${head}${open} ${parts.join(", ")} ${close}`;
      const isList = isOfItems && parts.every((part) => (part.length <= 16 || part.startsWith("... ")) && !part.includes("\n"));
      const lines = [];
      for (const part of parts) {
        const last = lines.at(-1);
        if (isList && last !== undefined && last.length + part.length + 2 <= LINE) lines[lines.length - 1] = `${last}, ${part}`;
        else lines.push(part);
      }
      return `${head}${open}\n${lines.map((line) => `  ${line.replaceAll("\n", "\n  ")}`).join(",\n")}\n${close}`;
    }
  }
  const depthOf = (options) => (options?.depth === null ? Infinity : (options?.depth ?? MAX_DEPTH));
  world.inspect = (value, options) => new Shown(depthOf(options)).text(value);
  world.inspect.custom = CUSTOM;
};
