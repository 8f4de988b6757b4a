// Starts a Python guest, or another program of a boot image, from its bundle: one script (build_bundle.mjs), the code that V8 compiled
// of it when it was made, and the machine code that V8 compiled of CPython's functions while they ran then.
//   node ... start_guest.cjs BUNDLE CODE NATIVE MAIN ARGUMENTS       MAIN: a module of this folder, which the bundle has too
//   node ... start_guest.cjs BUNDLE CODE NATIVE MAIN SETTINGS make       write CODE and NATIVE at its end
// CommonJS, because Node's loader of ES modules takes 20 ms to start.
const fs = require("node:fs");
const process = require("node:process");
const vm = require("node:vm");
const zlib = require("node:zlib");

const LEAD_BYTES = 256;
const [FLAGS_AT, FLAGS_END] = [12, 16]; // V8's hash of its flags, in code of both kinds
// The limit of WebAssembly's memory is a flag, too, and sessions have different ones; the others are for making only.
const OTHERWISE_EQUAL =
  /^--(allow-fs-|wasm-max-mem-pages=|allow-natives-syntax|wasm-sync-tier-up|wasm-tiering-budget=|no-flush-bytecode|hash-seed=|random-seed=)/;
// Only V8's own functions for its tests save and load a module's machine code. A guest has their syntax switched off: it loads the
// calls that it needs as compiled code. Where the address space is limited, V8 has no guard pages behind a memory, which this machine
// code relies on.
const SAVE = "(module) => { %FlushLiftoffCode(); return %SerializeWasmModule(module); }";
const LOAD = "(native, wasm) => %IsWasmTrapHandlerEnabled() ? %DeserializeWasmModule(native, wasm) : undefined";

const FUNCTION_SECTION = 3;
const BUDGET = 13_000_000; // V8's own
const TRAINING_BUDGET = 100_000;

const [bundle = "", codeFile = "", nativeFile = "", main = ""] = process.argv.splice(2, 4);
const make = process.argv[3] === "make";
const bundled = fs.readFileSync(bundle);

// In place of Node's, which consists of a dozen modules: V8 would compile them (build_bundle.mjs).
const { hrtime } = process;
const begun = hrtime();
const now = () => {
  const [seconds = 0, nanoseconds = 0] = hrtime(/** @type {any} */ (begun));
  return seconds * 1e3 + nanoseconds / 1e6;
};
Object.defineProperty(globalThis, "performance", { value: { now, timeOrigin: Date.now() } });

/** The first bytes of a file of code: V8 checks its own version and processor, but not what the code was made of.
 * @param {Buffer} source @param {Buffer[]} parts of the file behind it */
function leadOf(source, parts) {
  const { version, platform, arch, execArgv } = process;
  const flags = zlib.crc32(execArgv.filter((each) => !OTHERWISE_EQUAL.test(each)).join(" "));
  const made = { version, platform, arch, flags, source: zlib.crc32(source) };
  const lead = JSON.stringify({ ...made, sizes: parts.map(({ length }) => length), crc32: parts.reduce((crc, part) => zlib.crc32(part, crc), 0) });
  return Buffer.from(`${lead.padEnd(LEAD_BYTES - 1)}\n`);
}

/** The parts of a file of code, each in memory of its own, as V8 wants them. None if the file is not of this source, this Node and its
 * flags. @param {string} file @param {Buffer} source @returns {Buffer[]} */
function readCode(file, source) {
  let fd = -1;
  try {
    fd = fs.openSync(file, "r");
    const read = (/** @type {number} */ size) => {
      const part = Buffer.allocUnsafeSlow(size);
      if (fs.readSync(fd, part, 0, size, null) !== size) throw new Error("the file is cut short");
      return part;
    };
    const lead = read(LEAD_BYTES);
    const parts = JSON.parse(lead.toString()).sizes.map(read);
    return lead.equals(leadOf(source, parts)) ? parts : [];
  } catch {
    return [];
  } finally {
    if (fd >= 0) fs.closeSync(fd);
  }
}

/** @param {string} file @param {Buffer} source @param {Buffer[]} parts */
const writeCode = (file, source, ...parts) => fs.writeFileSync(file, Buffer.concat([leadOf(source, parts), ...parts]));

/** Give code the flags of this process: no code of V8 depends on those that differ. @param {Buffer} code */
const withOwnFlags = (code) => code.fill(new vm.Script("0").createCachedData().subarray(FLAGS_AT, FLAGS_END), FLAGS_AT, FLAGS_END);

/** Compile CPython, which the bundle compiles first. @param {(wasm: Buffer) => Promise<WebAssembly.Module>} compileMain */
function compileMainBy(compileMain) {
  const { compile } = WebAssembly;
  WebAssembly.compile = (wasm) => {
    WebAssembly.compile = compile;
    return compileMain(/** @type {any} */ (wasm));
  };
}

/** A module whose functions have their machine code already: most of those that a start and usual cells call.
 * @param {Buffer} wasm @returns {WebAssembly.Module | undefined} */
function loadNative(wasm) {
  const [call, native] = readCode(nativeFile, wasm);
  if (!call || !native) return undefined;
  try {
    const load = new vm.Script(LOAD, { cachedData: withOwnFlags(call) }).runInThisContext();
    const module = load(withOwnFlags(native).buffer, wasm); // undefined on another processor, too
    if (module) free(native, wasm);
    return module;
  } catch {
    return undefined; // V8 wants none of that code, and does not know the syntax
  }
}

/** Give memory back now, not when V8 collects garbage: 15 MB. @param {Buffer[]} read what nobody needs any more */
const free = (...read) => read.forEach(({ buffer }) => /** @type {any} */ (buffer).transfer(0));

/** How many functions a module has besides those that it imports. @param {Buffer} wasm */
function functionCount(wasm) {
  let at = 8; // behind the magic number and the version
  const number = () => {
    for (let value = 0, shift = 0; ; shift += 7) {
      value |= (wasm[at] & 0x7f) << shift;
      if (!(wasm[at++] & 0x80)) return value;
    }
  };
  for (let next = at; ; at = next) {
    const section = wasm[at++];
    next = number() + at;
    if (section === FUNCTION_SECTION) return number();
  }
}

/** V8 also saves how much each function may still run until it is compiled better, its last part, and the training left little.
 * @param {Buffer} native @param {number} functions */
function resetBudgets(native, functions) {
  for (let at = native.length - 4 * functions; at < native.length; at += 4) {
    if (native.readUInt32LE(at) > TRAINING_BUDGET) throw new Error("V8 keeps its budgets elsewhere");
    native.writeUInt32LE(BUDGET, at);
  }
}

/** @param {Buffer} wasm @param {WebAssembly.Module} module */
function writeNative(wasm, module) {
  const native = Buffer.from(new vm.Script(SAVE).runInThisContext()(module));
  resetBudgets(native, functionCount(wasm));
  const load = new vm.Script(LOAD);
  // Accepted, not yet loaded: V8 finds the module that is here. A guest of the tests loads it.
  const isAccepted = load.runInThisContext()(native.buffer, wasm) instanceof WebAssembly.Module;
  const call = load.createCachedData(); // with the function, because it was called
  writeCode(nativeFile, wasm, ...(isAccepted ? [call, native] : []));
}

/** @param {Buffer | undefined} cachedData */
function start(cachedData) {
  const script = new vm.Script(bundled.toString("latin1"), {
    filename: "boot.js?pyodide.asm.mjs", // by this name Pyodide knows its own lines, which tracebacks leave out
    cachedData,
    importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  });
  script.runInThisContext()(main);
  return script;
}

/** Start, and write what was compiled when the guest ends, by leave.mjs. */
function startAndMake() {
  const { kill } = process;
  const { compile } = WebAssembly;
  /** @type {() => void} */
  let write = () => {};
  compileMainBy(async (wasm) => {
    const module = await compile(/** @type {any} */ (wasm));
    write = () => writeNative(wasm, module);
    return module;
  });
  const script = start(undefined);
  process.kill = (...args) => {
    try {
      writeCode(codeFile, bundled, script.createCachedData()); // with the functions that were called
      write();
    } catch (error) {
      fs.writeSync(2, `${/** @type {Error} */ (error).stack}\n`);
      throw error; // then it ends by no signal
    }
    return kill(...args);
  };
}

const [code] = make ? [] : readCode(codeFile, bundled);
if (make) {
  startAndMake();
} else if (code) {
  const { compile } = WebAssembly;
  compileMainBy(async (wasm) => loadNative(wasm) ?? compile(/** @type {any} */ (wasm)));
  start(withOwnFlags(code));
  free(bundled, code);
} else import(`./${main}`); // to compile the bundle takes longer than to load its modules
