// What the host does for the world of cells (world/*.js): files, timers, requests, text.
import path from "node:path";
import { Tools } from "./tools.mjs";

const MAX_TIMERS = 10_000;
const HASHES = new Set(["md5", "sha1", "sha256", "sha384", "sha512"]);
const MAX_RANDOM_BYTES = 65_536;
const MAX_ADDRESS_CHARS = 64 * 1024;
const MAX_LABEL_CHARS = 50; // of an encoding
const VERSION = /\?\d+$/; // after the file's name, as world/modules.js has it
// Values in a JSON text, each of which Node needs some memory for.
const MAX_VALUES = 1_000_000;

/** @typedef {{ask: (call: object) => Promise<import("./tools.mjs").Answer>, files: import("./files.mjs").Files,
 * send: (type: string, content: object) => void, write: (name: string, text: string) => void,
 * fire: (number: number) => void, uncaught: (fault: import("./realm.mjs").Fault) => void}} Parts */

/** @param {Parts} parts */
export function makeServices({ ask, files, send, write, fire, uncaught }) {
  /** @type {Map<number, NodeJS.Timeout>} */
  const timers = new Map();
  let timerCount = 0;
  const tools = new Tools(ask, files);
  const exists = (/** @type {string} */ name) => files.call("exists", [name]);

  /** @type {Record<string, import("./realm.mjs").Service>} */
  const all = {
    write,
    now: () => performance.now(),
    hash: (/** @type {string} */ algorithm, /** @type {Buffer} */ bytes) => {
      if (!HASHES.has(algorithm)) throw new Error(`there is no hash ${algorithm.slice(0, 50)}: there are ${[...HASHES].join(", ")}`);
      return nodeCrypto().createHash(algorithm).update(bytes).digest();
    },
    uuid: () => nodeCrypto().randomUUID(),
    random: (/** @type {number} */ count) => nodeCrypto().randomBytes(Math.min(count, MAX_RANDOM_BYTES)),
    encode: (/** @type {string} */ text, /** @type {string} */ encoding) => Buffer.from(text, known(encoding)),
    decode: (/** @type {Buffer} */ bytes, /** @type {string} */ encoding) => bytes.toString(known(encoding)),
    charset: (/** @type {string} */ label) => new TextDecoder(label.slice(0, MAX_LABEL_CHARS)).encoding,
    decodeText: (/** @type {Buffer} */ bytes, /** @type {string} */ label, /** @type {boolean} */ fatal, /** @type {boolean} */ ignoreBOM) =>
      new TextDecoder(label, { fatal, ignoreBOM }).decode(bytes),
    unfinished,
    uncaught: (/** @type {string} */ fault) => uncaught(parsed(fault)),
    btoa: (/** @type {string} */ text) => btoa(text),
    atob: (/** @type {string} */ text) => atob(text),
    display: (/** @type {string} */ text) => send("display_data", { ...parsed(text), transient: {} }),
    cwd: () => files.workingDirectory,
    path: (/** @type {string} */ name, /** @type {string} */ values) => {
      if (!Object.hasOwn(path.posix, name)) throw new Error(`there is no path.${name}`);
      let given = parsed(values);
      // Node itself is in another folder than the cell.
      if (name === "resolve") given.unshift(files.workingDirectory);
      if (name === "relative") given = given.map((/** @type {string} */ each) => path.posix.resolve(files.workingDirectory, each));
      return JSON.stringify(/** @type {any} */ (path.posix)[name](...given));
    },
    file: (/** @type {string} */ name, /** @type {string} */ values) =>
      said(() => JSON.stringify({ value: files.call(name, parsed(values)) ?? null }), (error) => ({ error })),
    readFile: (/** @type {string} */ name) => said(() => files.read(name)),
    writeFile: (/** @type {string} */ name, /** @type {Buffer} */ bytes, /** @type {string} */ flag) =>
      said(() => files.write(name, bytes, flag)),
    startTimer: (/** @type {number} */ delay, /** @type {boolean} */ again) => {
      if (timers.size >= MAX_TIMERS) throw new Error(`more than ${MAX_TIMERS} timers`);
      const number = ++timerCount;
      const due = () => {
        if (!again) timers.delete(number);
        fire(number);
      };
      timers.set(number, again ? setInterval(due, delay) : setTimeout(due, delay));
      return number;
    },
    stopTimer: (/** @type {number} */ number) => {
      clearTimeout(timers.get(number));
      timers.delete(number);
    },
    fetch: async (/** @type {string} */ text) => {
      try {
        const { redirect, ...request } = parsed(text);
        const { value, error } = await ask({ call: "fetch", ...request, follow: redirect === "follow" });
        return JSON.stringify(error ? { error } : value);
      } catch (error) {
        return JSON.stringify({ error: /** @type {Error} */ (error).message });
      }
    },
    callTool: (/** @type {string} */ name, /** @type {string} */ text) => tools.call(name, parsed(text)),
    toolNames: (/** @type {string} */ server) => JSON.stringify(tools.names(server || undefined)),
    searchTools: (/** @type {string} */ text) => tools.search(text),
    parseURL: (/** @type {string} */ text, /** @type {string} */ base) => {
      if (text.length + base.length > MAX_ADDRESS_CHARS) return JSON.stringify({ error: "Invalid URL: it is too long" });
      if (!URL.canParse(text, base || undefined)) return JSON.stringify({ error: `Invalid URL: ${text}` });
      return partsOf(new URL(text, base || undefined));
    },
    changeURL: (/** @type {string} */ text, /** @type {string} */ part, /** @type {string} */ value) => {
      if (text.length + value.length > MAX_ADDRESS_CHARS) return JSON.stringify({ error: "Invalid URL: it is too long" });
      const url = new URL(text);
      if (part in url) Reflect.set(url, part, value);
      return partsOf(url);
    },
    parseQuery: (/** @type {string} */ text) => {
      checkValues(text, /&/g);
      return JSON.stringify([...new URLSearchParams(text)]);
    },
    formatQuery: (/** @type {string} */ pairs) => new URLSearchParams(parsed(pairs)).toString(),
    noModule: (/** @type {string} */ name) =>
      `there is no module '${name}' here: fs, path, util, assert, timers, url, buffer, crypto and os are, and files of the workspace ('./name.js'). ` +
      "npm packages cannot be installed",
    modulePath: (/** @type {string} */ from, /** @type {string} */ name) => {
      if (!/^\.{0,2}\//.test(name)) return name;
      const folder = from.startsWith("/") ? path.posix.dirname(from) : files.workingDirectory;
      const whole = path.posix.resolve(folder, name);
      return exists(whole) ? whole : path.posix.resolve(folder, name.replace(/\?.*$/s, ""));
    },
    moduleSource: (/** @type {string} */ name, /** @type {string} */ names) => {
      if (name.startsWith("/")) {
        const file = exists(name) ? name : name.replace(VERSION, "");
        const text = files.read(file).toString();
        return file.endsWith(".json") ? `export default JSON.parse(${JSON.stringify(text)});` : text;
      }
      const from = `const module = require(${JSON.stringify(name)}); export default module;`;
      return names ? `${from} export const { ${names.split(" ").join(", ")} } = module;` : from;
    },
  };
  return {
    all,
    complain: (/** @type {string} */ text) => write("stderr", text),
    /** Numbers of ended timers may still be in variables. */
    get timerCount() {
      return timerCount;
    },
    set timerCount(count) {
      timerCount = count;
    },
    hasTimers: () => timers.size > 0,
    stopTimers: () => {
      for (const timer of timers.values()) clearTimeout(timer);
      timers.clear();
    },
  };
}

/** @param {URL} url */
function partsOf({ href, origin, protocol, username, password, host, hostname, port, pathname, search, hash }) {
  return JSON.stringify({ href, origin, protocol, username, password, host, hostname, port, pathname, search, hash });
}

/** Loading it takes a tenth of the start. */
function nodeCrypto() {
  return process.getBuiltinModule("node:crypto");
}

/** @param {string} text @param {RegExp} [separators] */
function checkValues(text, separators = /[,[{]/g) {
  let count = 0;
  while (separators.test(text)) if (++count > MAX_VALUES) throw new RangeError(`more than ${MAX_VALUES} values at once`);
}

/** @param {string} text JSON @returns {any} */
function parsed(text) {
  checkValues(text);
  return JSON.parse(text);
}

/** How many bytes at the end are the beginning of a character. @param {Buffer} bytes @param {string} label */
function unfinished(bytes, label) {
  if (label === "iso-2022-jp") throw new RangeError(`${label} cannot be decoded as a stream: give decode() all bytes at once`);
  const text = new TextDecoder(label).decode(bytes, { stream: true });
  return [0, 1, 2, 3].find((count) => new TextDecoder(label).decode(bytes.subarray(0, bytes.length - count)) === text) ?? 0;
}

/** @param {string} encoding @returns {BufferEncoding} */
function known(encoding) {
  if (!Buffer.isEncoding(encoding)) throw new TypeError(`Unknown encoding: ${String(encoding).slice(0, MAX_LABEL_CHARS)}`);
  return encoding;
}

/** What `act` gives, or a file system's error as JSON. @template T @param {() => T} act
 * @param {(error: object) => object} [wrap] @returns {T | string} */
function said(act, wrap = (error) => error) {
  try {
    return act();
  } catch (error) {
    const { message, code, syscall, path: name } = /** @type {NodeJS.ErrnoException} */ (error);
    return JSON.stringify(wrap({ message, code, syscall, path: name }));
  }
}
