// Starts a Python guest from its bundle: one script (build_bundle.mjs), and the code that V8 compiled of it when it was made.
//   node ... start_guest.cjs BUNDLE CODE SETTINGS [make]       SETTINGS: python_guest.mjs reads them; make: write CODE
// CommonJS, because Node's loader of ES modules takes 20 ms to start.
const fs = require("node:fs");
const process = require("node:process");
const vm = require("node:vm");
const zlib = require("node:zlib");

const LEAD_BYTES = 128;
const [FLAGS_AT, FLAGS_END] = [12, 16]; // V8's hash of its flags, in its code
const OTHERWISE_EQUAL = /^--(allow-fs-|wasm-max-mem-pages=)/;

const [bundle = "", codeFile = ""] = process.argv.splice(2, 2);
const make = process.argv[3];
const source = fs.readFileSync(bundle);

/** The first bytes of a file of code: V8 checks its own version, but of the script only the length.
 * @param {Buffer} code */
function leadOf(code) {
  const { version, platform, arch, execArgv } = process;
  const flags = zlib.crc32(execArgv.filter((each) => !OTHERWISE_EQUAL.test(each)).join(" "));
  const lead = JSON.stringify({ version, platform, arch, flags, source: zlib.crc32(source), code: zlib.crc32(code) });
  return Buffer.from(`${lead.padEnd(LEAD_BYTES - 1)}\n`);
}

/** Undefined if there is none for this script, this Node and its flags. */
function readCode() {
  try {
    const bytes = fs.readFileSync(codeFile);
    const code = bytes.subarray(LEAD_BYTES);
    if (!bytes.subarray(0, LEAD_BYTES).equals(leadOf(code))) return undefined;
    // The limit of WebAssembly's memory is a flag, too, and sessions have different ones. No code of V8 depends on it.
    code.set(new vm.Script("0").createCachedData().subarray(FLAGS_AT, FLAGS_END), FLAGS_AT);
    return code;
  } catch {
    return undefined;
  }
}

const code = make ? undefined : readCode();
if (code || make) start(code);
else import("./python_guest.mjs"); // to compile the bundle takes longer than to load its modules

/** @param {Buffer | undefined} cachedData */
function start(cachedData) {
  const script = new vm.Script(source.toString("latin1"), {
    filename: `${bundle}?pyodide.asm.mjs`, // by this name Pyodide knows its own lines, which tracebacks leave out
    cachedData,
    importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  });
  const started = script.runInThisContext()();
  if (!make) return;
  started.then(() => {
    const made = script.createCachedData(); // with the functions that a start has called
    fs.writeFileSync(codeFile, Buffer.concat([leadOf(made), made]));
  });
}
