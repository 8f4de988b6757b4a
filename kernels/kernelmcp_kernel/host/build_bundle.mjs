// Builds the bundle of a Python guest. Runs on the trusted side, with build_image.mjs, and nothing of a user's is in it:
//   node build_bundle.mjs RUNTIME_FOLDER IMAGE_FILE BUILD_ID BUNDLE_FILE CODE_FILE FLAGS
//
// The bundle is one script with python_guest.mjs, the modules that it imports, and Pyodide's. For each module of ours Node takes
// 2 ms, and V8 compiles Pyodide's for 80 ms at each start: of one script it can keep the code, which FLAGS, JSON, belong to.
//
// A module becomes a function that returns its exports, line for line: what our modules import and export is one line each.
import { spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import process from "node:process";
import { leave } from "./leave.mjs";

const HOST = import.meta.dirname;
const IMPORT_OF_NODE = /^import (\w+|\{[\w, ]+\})\sfrom\s"(node:[\w/]+)";$/gm;
const IMPORT = /^import (\{[\w, ]+\})\sfrom\s"(\.[\w./]+)";$/gm;
const EXPORT = /^export (?=(?:(?:async )?function|class|const) (\w+|\[[\w, ]+\]))/gm;

const [runtime, image, buildId, bundle, code, flags] = process.argv.slice(2);
if (!runtime || !image || !buildId || !bundle || !code || !flags)
  throw new Error("usage: build_bundle.mjs RUNTIME IMAGE BUILD_ID BUNDLE CODE FLAGS");

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
  const asm = replaceOnce(read("pyodide.asm.mjs"), /\bexport default (\w+);/, (_, name) => `return ${name};`);
  return `import path from "node:path";
import { pathToFileURL } from "node:url";
export async function importPyodide(folder) {
const loadPyodide = (() => {${api}
})();
const factory = ((importMeta) => {${asm.replaceAll("import.meta", "importMeta")}
})({ url: pathToFileURL(path.join(folder, "pyodide.asm.mjs")).href });
return { loadPyodide, factory };
}`;
}

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

const main = bodyOf("python_guest.mjs");
const functions = [...modules].map(([name, body]) => `modules["${name}"] = (() => { // ${name}\n${body}\n})();\n`);
const text = `// ${buildId}
(async () => {
"use strict";
const modules = {};
const ofNode = (name) => process.getBuiltinModule(name);
${functions.join("")}await (async () => { // python_guest.mjs
${main}
})();
})`;
if (/[^\0-\x7f]/.test(text)) throw new Error("the bundle is not ASCII, and would take twice the memory");
fs.writeFileSync(bundle, text);

// A guest as any other, but with all files: it ends when it has started, because descriptor 3 does.
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "kernelmcp-bundle-"));
const [workspace, tmp, offered] = ["workspace", "tmp", "offered"].map((name) => path.join(folder, name));
for (const each of [workspace, tmp, offered]) fs.mkdirSync(each);
const settings = { runtime, image, build_id: buildId, packages: [], workspace, tmp, offered, volumes: [] };
const rest = { quota: { max_bytes: 0, max_files: 0 }, working_directory: "/workspace", how_to_see_more: "" };
const program = [...JSON.parse(flags), "--allow-fs-read=*", "--allow-fs-write=*", path.join(HOST, "start_guest.cjs"), bundle, code];
try {
  const child = spawn(process.execPath, [...program, JSON.stringify({ ...settings, ...rest }), "make"], {
    env: {},
    stdio: ["ignore", "ignore", "inherit", "pipe", "pipe", "pipe", "pipe", "pipe"],
  });
  child.stdio[4]?.on("data", () => {});
  for (const fd of [3, 5, 6, 7]) child.stdio[fd]?.destroy();
  await once(child, "close");
  if (!fs.existsSync(code)) throw new Error("the guest did not start");
} finally {
  fs.rmSync(folder, { recursive: true });
}
leave(0);
