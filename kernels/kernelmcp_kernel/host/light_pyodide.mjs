// Part of build_bundle.mjs: Pyodide's Emscripten module, without what Emscripten does for each of 8,600 exports at each start, of which
// JavaScript uses 135 by name. How they are placed instead is in main_symbols.mjs.
import fs from "node:fs";
import path from "node:path";
import { Image } from "./image.mjs";
import { loadRuntime } from "./pyodide.mjs";

const TYPES = { i: 127, p: 127, j: 126, f: 125, d: 124, e: 111 }; // of WebAssembly, by the letters of Emscripten's signatures
const HEADER = [0, 97, 115, 109, 1, 0, 0, 0];
const FUNCTION = 96;
const FUNCTIONS_OF_ANY_NUMBER = [112, 0, 0];
const [I32_CONST, END] = [65, 11];

/** @param {string} text @param {string} part @param {string} other */
function replaceOnly(text, part, other) {
  const found = text.split(part);
  if (found.length !== 2) throw new Error(`Pyodide's module has "${part}" ${found.length - 1} times`);
  return found.join(other);
}

/** @param {string} text Pyodide's Emscripten module @param {string} others all that uses it
 * @returns {string} the same with `placeSymbols(mainSymbols, exports, env, got)` in place of what it does for each export */
export function lightModule(text, others) {
  const parts = /var (?:\w+,)+wasmTable,wasmMemory;function assignWasmExports\(wasmExports\)\{([^}]*)\}/.exec(text);
  if (!parts?.[1]) throw new Error("Pyodide's module does not assign its exports");
  const rest = text.replace(parts[0], "");
  const used = new Set(`${rest} ${others}`.match(/\w+/g));
  const assigned = parts[1].split(";").filter((each) => used.has(each.split("=", 1)[0]) || /=wasm(Table|Memory)=/.test(each));
  const variables = [...assigned.map((each) => each.split("=", 1)[0]), "wasmTable", "wasmMemory"];
  const body = `var ${variables};function assignWasmExports(wasmExports){${assigned.join(";")}}`;
  const light = text.replace(parts[0], () => body);
  const kept = new Set(Array.from(light.matchAll(/wasmExports(?:\.(\w+)|\["(\w+)"\])/g), ([, one, other]) => one ?? other));
  const picked = `{${Array.from(kept, (name) => `${name}:wasmExports["${name}"]`)}}`;
  return [
    ['mergeLibSymbols(wasmExports,"main");', ""],
    ["updateGOT(origExports);", "placeSymbols(mainSymbols,origExports,wasmImports,GOT);"],
    ["wasmExports=Object.assign({},wasmExports);", `wasmExports=${picked};`],
    ["Object.keys(lib.exports).indexOf(symbol)", "symbol in lib.exports?0:-1"],
    // addFunction() would first look at each of 16,000 entries of the table, for a function that is new.
    [
      "return addFunction(trampolineInstance.exports.trampoline_call)",
      "const slot=getEmptyTableSlot();setWasmTableEntry(slot,trampolineInstance.exports.trampoline_call);return slot",
    ],
  ].reduce((made, [part, other]) => replaceOnly(made, part, other), light);
}

/** @param {number} number @param {number} [limit] of the last byte @returns {number[]} LEB128 */
function unsigned(number, limit = 128) {
  return number < limit ? [number] : [(number & 127) | 128, ...unsigned(number >> 7, limit)];
}

/** @param {number} number not negative @returns {number[]} LEB128 with a sign */
const signed = (number) => unsigned(number, 64);

/** @param {string} text @returns {number[]} */
const named = (text) => [...unsigned(text.length), ...Buffer.from(text, "latin1")];

/** @param {number} id @param {number[][]} entries @returns {number[]} */
function section(id, entries) {
  const content = [...unsigned(entries.length), ...entries.flat()];
  return [id, ...unsigned(content.length), ...content];
}

/** @param {string} letters of a signature, "v" for nothing @returns {number[]} */
function typesOf(letters) {
  const types = Array.from(letters.replace("v", ""), (each) => TYPES[/** @type {keyof typeof TYPES} */ (each)]);
  return [...unsigned(types.length), ...types];
}

/** A module that puts functions of JavaScript into the table. @param {string[]} signatures Emscripten's: the result, then the
 * parameters @param {number} start */
function wrapperModule(signatures, start) {
  const different = [...new Set(signatures)];
  const types = different.map((each) => [FUNCTION, ...typesOf(each.slice(1)), ...typesOf(each[0] ?? "v")]);
  const table = [...named("table"), ...named("table"), 1, ...FUNCTIONS_OF_ANY_NUMBER];
  const functions = signatures.map((each, at) => [...named("functions"), ...named(`${at}`), 0, ...unsigned(different.indexOf(each))]);
  const places = signatures.flatMap((_, at) => unsigned(at));
  const elements = [0, I32_CONST, ...signed(start), END, ...unsigned(signatures.length), ...places];
  return Buffer.from([...HEADER, ...section(1, types), ...section(2, [table, ...functions]), ...section(9, [elements])]);
}

/** Where Emscripten places them: it is asked, once. @param {string} runtime @param {string} image @param {string} buildId
 * @returns {Promise<import("./main_symbols.mjs").MainSymbols>} */
export async function symbolsOf(runtime, image, buildId) {
  const { _module } = await loadRuntime(runtime, new Image(image, buildId), {}, () => 0);
  const env = _module.LDSO.loadedLibsByName.__main__.exports;
  const addressOf = (/** @type {string} */ name) => _module.GOT[name]?.value ?? 0;
  const main = await WebAssembly.compile(fs.readFileSync(path.join(runtime, "pyodide", "pyodide.asm.wasm")));
  const exported = WebAssembly.Module.exports(main).map(({ name }) => name);
  const asked = WebAssembly.Module.imports(main).filter(({ module }) => module.startsWith("GOT."));
  const imported = asked.map(({ name }) => /** @type {[string, number]} */ ([name, addressOf(name)]));
  const own = new Set(exported);
  const wrapped = new Map(imported.filter(([name, address]) => address && !own.has(name)).map(([name, address]) => [address, name]));
  const places = [...wrapped.keys()].sort((one, other) => one - other);
  const start = places[0] ?? 0;
  if (places.some((place, at) => place !== start + at)) throw new Error("Emscripten's wrappers are not side by side");
  const names = places.map((place) => wrapped.get(place) ?? "");
  const wrappers = wrapperModule(names.map((name) => env[name].sig), start).toString("base64");
  return { addresses: exported.map(addressOf), imported, wrapped: names, length: start + names.length, wrappers };
}
