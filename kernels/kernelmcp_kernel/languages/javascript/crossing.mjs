// Strings, numbers and bytes on their way between QuickJS's memory and Node's. Nothing else crosses, and nothing without a
// bound: Node's memory ends the process when it is full, and a C string in QuickJS's ends at its first NUL.

// Of a text or of bytes.
const MAX_LENGTH = 32 * 1024 * 1024;
const PART = 256 * 1024;

// What C's UTF-8 cannot say, a NUL and half of a surrogate pair, goes as JSON, part by part. The functions that do it are those
// that QuickJS began with, whatever a cell has made of them.
const HELPERS = `((stringify, parse, slice, apply) => [
  (text, from, to) => stringify(apply(slice, text, [from, to])),
  (text, part) => text + parse(part),
])(JSON.stringify, JSON.parse, String.prototype.slice, Reflect.apply)`;

/** @typedef {import("quickjs-emscripten-core").QuickJSHandle} Handle */

export class Crossing {
  /** @param {import("quickjs-emscripten-core").QuickJSContext} context */
  constructor(context) {
    this.context = context;
    const helpers = context.unwrapResult(context.evalCode(HELPERS));
    this.quoted = context.getProp(helpers, 0);
    this.joined = context.getProp(helpers, 1);
    helpers.dispose();
  }

  /** @param {Handle} handle @returns {any} undefined for what does not cross */
  take(handle) {
    const { context } = this;
    const kind = context.typeof(handle);
    if (kind === "string") return this.#takeText(handle);
    if (kind === "number") return context.getNumber(handle);
    if (kind === "boolean") return context.dump(handle);
    if (kind !== "object") return undefined;
    const lifetime = context.getArrayBuffer(handle);
    try {
      checkLength(lifetime.value.length);
      return Buffer.from(lifetime.value);
    } finally {
      lifetime.dispose();
    }
  }

  /** @param {string | number | boolean | Uint8Array | void} value @returns {Handle} */
  give(value) {
    const { context } = this;
    if (typeof value === "string") return this.#giveText(value);
    if (typeof value === "number") return context.newNumber(value);
    if (typeof value === "boolean") return value ? context.true : context.false;
    if (value === undefined) return context.undefined;
    checkLength(value.length);
    return context.newArrayBuffer(/** @type {ArrayBuffer} */ (new Uint8Array(value).buffer));
  }

  /** @param {Handle} handle @returns {string} */
  #takeText(handle) {
    const { context } = this;
    const length = context.getProp(handle, "length").consume((found) => context.getNumber(found));
    checkLength(length);
    const text = context.getString(handle);
    if (text.length === length && !text.includes("\ufffd")) return text;
    let all = "";
    for (let from = 0; from < length; from += PART) {
      const ends = [context.newNumber(from), context.newNumber(from + PART)];
      const part = this.#called(this.quoted, handle, ...ends);
      all += JSON.parse(context.getString(part));
      part.dispose();
    }
    return all;
  }

  /** @param {string} text @returns {Handle} */
  #giveText(text) {
    const { context } = this;
    checkLength(text.length);
    if (text.isWellFormed() && !text.includes("\0")) return context.newString(text);
    let all = context.newString("");
    for (let from = 0; from < text.length; from += PART) {
      const part = context.newString(JSON.stringify(text.slice(from, from + PART)));
      const longer = this.#called(this.joined, all, part);
      for (const handle of [all, part]) handle.dispose();
      all = longer;
    }
    return all;
  }

  /** @param {Handle} helper @param {Handle[]} handles @returns {Handle} */
  #called(helper, ...handles) {
    const result = this.context.callFunction(helper, this.context.undefined, handles);
    if (!result.error) return result.value;
    result.error.dispose();
    throw outOfMemory();
  }
}

/** @param {number} length */
function checkLength(length) {
  if (length > MAX_LENGTH) throw new RangeError(`more than ${MAX_LENGTH / 1024 / 1024} MiB at once: take it in parts`);
}

export function outOfMemory() {
  return Object.assign(new Error("out of memory"), { name: "InternalError" });
}
