// Builds the bundle of what starts from a boot image. Runs on the trusted side, with build_image.mjs, and nothing of a user's is
// in it:
//   node build_bundle.mjs RUNTIME_FOLDER IMAGE_FILE BUILD_ID BUNDLE_FILE CODE_FILE NATIVE_FILE FLAGS
//
// The bundle is one script with MAINS, of which each start names one, the modules that they import, and Pyodide's. For each
// module of ours Node takes 2 ms, and V8 compiles Pyodide's for 80 ms at each start: of one script it can keep the code, which
// FLAGS, JSON, belong to. The machine code of CPython's functions it can keep, too.
//
// V8 does not take Node's own code of its modules, because its flags are others, and compiles each one that is imported: so Pyodide
// gets stand-ins for three that are large and that it hardly uses, and the others without Node's loader of ES modules.
//
// A module becomes a function that returns its exports, line for line: what our modules import and export is one line each.
import { spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import process from "node:process";
import { leave } from "./leave.mjs";
import { lightModule, symbolsOf } from "./light_pyodide.mjs";

const HOST = import.meta.dirname;
const MAINS = ["python_guest.mjs", "wheel.mjs", "compile.mjs", "build_image.mjs"];
const IMPORT_OF_NODE = /^import (\w+|\{[\w, ]+\})\sfrom\s"(node:[\w/]+)";$/gm;
const IMPORT = /^import (\{[\w, ]+\})\sfrom\s"(\.[\w./]+)";$/gm;
const EXPORT = /^export (?=(?:(?:async )?function|class|const) (\w+|\[[\w, ]+\]))/gm;

const [runtime, image, buildId, bundle, code, native, flags] = process.argv.slice(2);
if (!runtime || !image || !buildId || !bundle || !code || !native || !flags)
  throw new Error("usage: build_bundle.mjs RUNTIME IMAGE BUILD_ID BUNDLE CODE NATIVE FLAGS");

/** @param {string} text @param {RegExp} pattern @param {(...found: string[]) => string} change */
function replaceOnce(text, pattern, change) {
  if (!pattern.test(text)) throw new Error(`Pyodide's module has no ${pattern}`);
  return text.replace(pattern, change);
}

/** What stands in for pyodide_modules.mjs. @param {string} folder of Pyodide */
function pyodideModules(folder) {
  const read = (/** @type {string} */ name) =>
    fs.readFileSync(path.join(folder, name), "utf8").replace(/^\/\/# sourceMappingURL=.*$/gm, "");
  const api = replaceOnce(read("pyodide.mjs"), /\bexport\s*\{(\w+) as loadPyodide,[^}]*\};?/, (_, name) => `return ${name};`);
  const used = fs.readdirSync(HOST, { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(".mjs"));
  const others = [api, ...used.map((name) => fs.readFileSync(path.join(HOST, name), "utf8"))].join("\n");
  const whole = replaceOnce(read("pyodide.asm.mjs"), /\bexport default (\w+);/, (_, name) => `return ${name};`);
  const asm = lightModule(whole, others);
  const withStandins = (/** @type {string} */ text) => text.replace(/\bimport\("(node:[\w/]+)"\)/g, 'importOfNode("$1")');
  return `import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { isUnneeded } from "./node_shims.mjs";
import { placeSymbols } from "./main_symbols.mjs";
const readFile = async (file, options) => isUnneeded(file) ? Buffer.alloc(0) : fs.readFileSync(file, options);
const requireOfNode = (name) => {
  const found = standins[name] ?? ofNode(name);
  if (!found) throw new Error("there is no " + name);
  return found;
};
const importOfNode = async (name) => Object.create(requireOfNode(name), { default: { value: requireOfNode(name) } });
const standins = {
  "node:fs/promises": { readFile },
  "node:module": { createRequire: () => requireOfNode },
  "node:tty": { isatty: () => false },
};
export async function importPyodide(folder) {
const loadPyodide = (() => {${withStandins(api)}
})();
const mainSymbols = JSON.parse('${JSON.stringify(symbols)}');
const factory = ((importMeta) => {${withStandins(asm).replaceAll("import.meta", "importMeta")}
})({ url: pathToFileURL(path.join(folder, "pyodide.asm.mjs")).href });
return { loadPyodide, factory };
}`;
}

const symbols = await symbolsOf(runtime, image, buildId);

/** @type {Map<string, string>} the functions of the modules, each behind those that it imports */
const modules = new Map();

/** Add a module, and what it imports. @param {string} name relative to HOST @returns {string} its body */
function bodyOf(name) {
  const file = path.join(HOST, name);
  const text = name === "pyodide_modules.mjs" ? pyodideModules(path.join(runtime, "pyodide")) : fs.readFileSync(file, "utf8");
  /** @type {string[]} */
  const exported = [];
  const body = text
    .replace(IMPORT_OF_NODE, (_, names, from) => `const ${names} = ofNode("${from}");`)
    .replace(IMPORT, (_, names, from) => {
      const other = path.join(path.dirname(name), from);
      if (!modules.has(other)) modules.set(other, bodyOf(other));
      return `const ${names} = modules["${other}"];`;
    })
    .replace(EXPORT, (_, names) => {
      exported.push(...(names.match(/\w+/g) ?? []));
      return "";
    });
  const left = body.match(/^(?:import|export)\b.*$/m);
  if (left) throw new Error(`${name}: the bundle does not know "${left[0].slice(0, 100)}"`);
  return `${body}\nreturn { ${exported.join(", ")} };`;
}

const mains = MAINS.map((name) => `"${name}": async () => { // ${name}\n${bodyOf(name)}\n},\n`);
const functions = [...modules].map(([name, body]) => `modules["${name}"] = (() => { // ${name}\n${body}\n})();\n`);
const text = `// ${buildId}
(async (main) => {
"use strict";
const modules = {};
const { getBuiltinModule: ofNode } = process; // later a guest has no such process (globals.mjs)
${functions.join("")}await ({
${mains.join("")}})[main]();
})`;
if (/[^\0-\x7f]/.test(text)) throw new Error("the bundle is not ASCII, and would take twice the memory");
fs.writeFileSync(bundle, text);

// A guest as any other, but with all files. It writes what V8 has compiled when it ends, because descriptor 3 does. V8 compiles what
// ran for a while, at once: which functions those are does not depend on the machine's speed.
const TRAINING_FLAGS = [
  "--allow-natives-syntax",
  "--wasm-sync-tier-up",
  "--wasm-tiering-budget=100000",
  "--no-flush-bytecode",
  "--hash-seed=1", // two builds make the same code; who loads it has a random seed
  "--random-seed=1",
];
const training = fs.readFileSync(path.join(HOST, "../inside/kernelmcp_guest/training.py"), "utf8");
const TRAINING_MS = 120_000; // it takes 2 s
const small = Array(100).fill("x = 1");
const cells = [...small, training, ...small];

/** @param {number} number */
function requestFor(number) {
  const flags = { silent: false, store_history: true, allow_stdin: false, user_expressions: {} };
  const content = { code: cells[number], ...flags, execution_count: number + 1 };
  const text = Buffer.from(JSON.stringify({ op: "execute", id: `cell ${number}`, number: number + 1, content }));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(text.length);
  return Buffer.concat([length, text]);
}

/** Run the cells, each when the one before it has its reply. @param {any} requests @param {any} frames */
async function train(requests, frames) {
  let number = 0;
  requests.write(requestFor(number));
  let buffer = Buffer.alloc(0);
  for await (const chunk of frames) {
    buffer = Buffer.concat([buffer, chunk]);
    while (buffer.length >= 4 && buffer.length >= 4 + buffer.readUInt32LE(0)) {
      const end = 4 + buffer.readUInt32LE(0);
      const { type, content } = JSON.parse(buffer.toString("utf8", 4, end));
      buffer = buffer.subarray(end);
      if (type === "call") throw new Error(`cell ${number} of the training asks for what only a kernel process has`);
      if (type !== "reply") continue;
      if (content.status !== "ok") throw new Error(`a cell of the training failed: ${content.traceback.join("\n")}`);
      if (++number === cells.length) return;
      requests.write(requestFor(number));
    }
  }
  throw new Error(`the guest did not start, or ended in cell ${number} of its training`);
}

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "kernelmcp-bundle-"));
const [workspace, tmp, offered] = ["workspace", "tmp", "offered"].map((name) => path.join(folder, name));
for (const each of [workspace, tmp, offered]) fs.mkdirSync(each);
const settings = { runtime, image, build_id: buildId, packages: [], workspace, tmp, offered, volumes: [] };
const rest = { quota: { max_bytes: 1 << 20, max_files: 10 }, working_directory: "/workspace", how_to_see_more: "" };
const options = [...JSON.parse(flags), ...TRAINING_FLAGS, "--allow-fs-read=*", "--allow-fs-write=*"];
const program = [...options, path.join(HOST, "start_guest.cjs"), bundle, code, native, MAINS[0]];
const child = spawn(process.execPath, [...program, JSON.stringify({ ...settings, ...rest }), "make"], {
  env: {},
  stdio: ["ignore", "ignore", "inherit", "pipe", "pipe", "ignore", "ignore", "ignore"], // nothing interrupts it
  timeout: TRAINING_MS,
});
const closed = once(child, "close");
try {
  child.stdio[3]?.on("error", () => {}); // it has ended, as we shall see
  await train(child.stdio[3], child.stdio[4]);
  child.stdio[3]?.destroy();
  const [, signal] = await closed;
  if (signal !== "SIGKILL") throw new Error("the guest could not write what was compiled"); // leave.mjs ends it so
} finally {
  child.kill("SIGKILL");
  await closed;
  fs.rmSync(folder, { recursive: true, force: true });
}
leave(0);
