// A guest process: Pyodide restored from the boot image, answering requests of the kernel process.
//   node ... main.mjs '{"runtime":..., "image":..., "build_id":..., "packages":..., "workspace":..., "tmp":..., "offered":..., "volumes":..., "quota":...,
//                      "working_directory":..., "folder":..., "how_to_see_more":..., "needed_by":..., "keep_globals":..., "keep_imports":...}'
// Descriptors: 3 requests in, 4 frames out, 5 interrupts in (non-blocking). Everything else is closed or /dev/null.
import process from "node:process";
import { StringDecoder } from "node:string_decoder";
import { describe } from "./errors.mjs";
import { makeFetch } from "./fetch.mjs";
import { readFrames, writeFrame } from "./frames.mjs";
import { cleanGlobals } from "./globals.mjs";
import { Image, ImageError } from "./image.mjs";
import { Interrupts } from "./interrupts.mjs";
import { loadRuntime, mountPackage } from "./pyodide.mjs";
import { Storage } from "./storage.mjs";
import { Streams } from "./streams.mjs";
import { chartDrawer } from "./vega.mjs";

const [REQUESTS, FRAMES, INTERRUPTS] = [3, 4, 5];
const IDLE_MS = 200;
const AGAIN_MS = 50;
const EXIT_BAD_IMAGE = 65; // EX_DATAERR; the kernel process rebuilds the image
const EXIT_GUEST_FAULT = 70; // EX_SOFTWARE
const EXIT_OUT_OF_MEMORY = 71;

const settings = JSON.parse(process.argv[2]);
const { gc } = globalThis;

/** @typedef {{resolve: (text: string) => void, reject: (error: Error) => void}} Waiter */
/** @type {Map<number, Waiter>} */
const hostCalls = new Map();
let hostCallCount = 0;
let currentId = "";

const emitNow = (/** @type {string} */ text) => writeFrame(FRAMES, text);
const streams = new Streams(emitNow);
/** @type {Storage | undefined} */
let storage;
/** One frame, after all that happened before it: what was printed, which files were written. @param {string} text */
const emit = (text) => {
  streams.flush();
  const changed = storage?.takeChanged();
  if (changed?.length) emitNow(JSON.stringify({ type: "files", id: currentId, content: { changed } }));
  emitNow(text);
};
const interrupts = new Interrupts(
  INTERRUPTS,
  () => emit(JSON.stringify({ type: "interrupted", id: currentId, content: {} })),
  () => streams.tick(),
);

/** A host call: a frame up, later a `result` frame down. @param {string} id @param {string} text @returns {Promise<string>} */
function ask(id, text) {
  const call = ++hostCallCount;
  interrupts.hold();
  const answer = new Promise((resolve, reject) => {
    hostCalls.set(call, { resolve, reject });
    emit(`{"type":"call","id":${JSON.stringify(id)},"content":{"number":${call},"arguments":${text}}}`);
  });
  answer.catch(() => {}); // an interrupt may come before anybody waits for it, and Node would end for that
  return answer;
}

/** A host call of JavaScript's. @param {string} text @returns {Promise<string>} */
function askNow(text) {
  return currentId ? ask(currentId, text) : Promise.reject(new Error("a request is made only while a cell runs"));
}

/** @param {number} call @returns {Waiter | undefined} */
function takeHostCall(call) {
  const waiter = hostCalls.get(call);
  hostCalls.delete(call);
  return waiter;
}

/** @param {number} status */
function leave(status) {
  streams.flush();
  process.exit(status);
}

/** Guest output below Python: C code and os.write to the standard descriptors. @param {string} name */
function rawStream(name) {
  const decoder = new StringDecoder("utf8");
  return {
    /** @param {Uint8Array} bytes */
    write(bytes) {
      streams.write(name, decoder.write(Buffer.from(bytes)), currentId);
      return bytes.length;
    },
  };
}

async function boot() {
  const image = new Image(settings.image, settings.build_id, settings.packages);
  const pyodide = await loadRuntime(settings.runtime, image, settings, () => interrupts.check());
  storage = new Storage(pyodide, settings.quota);
  storage.mount("/workspace", { root: settings.workspace, counted: true, noted: "" });
  storage.mount("/tmp", { root: settings.tmp, counted: true });
  storage.mount("/servers", { root: settings.offered, readOnly: true });
  for (const { name, path, mode } of settings.volumes)
    storage.mount(`/volumes/${name}`, { root: path, readOnly: mode !== "rw", noted: `/volumes/${name}/` });
  pyodide.FS.chdir(settings.working_directory);
  // Pyodide's own stdin is Node's descriptor 0, and closing it calls fsync, which the permission model forbids.
  pyodide.setStdin({ read: () => 0, fsync: () => undefined });
  pyodide.setStdout(rawStream("stdout"));
  pyodide.setStderr(rawStream("stderr"));
  const guest = pyodide.pyimport("kernelmcp_guest");
  const nap = (/** @type {number} */ ms) => interrupts.nap(ms);
  const wasInterrupted = () => interrupts.wasTaken();
  const write = (/** @type {string} */ name, /** @type {string} */ text, /** @type {string} */ id) =>
    streams.write(name, text, id);
  const heard = () => interrupts.heard();
  const drawChart = chartDrawer(settings.runtime);
  guest.attach(emit, write, () => streams.flush(), ask, nap, heard, wasInterrupted, interruptAgain, leave, drawChart);
  guest.begin_in(settings.folder ?? "", settings.how_to_see_more);
  guest.note_companions(JSON.stringify(settings.needed_by ?? {}));
  pyodide.setInterruptBuffer(interrupts.buffer(pyodide._module));
  const { handle, notify, interrupt, usable } = guest;
  const [setEnvironment, addPackages, endBackground] = [guest.set_environment, guest.add_packages, guest.end_background];
  return { pyodide, handle, notify, interrupt, usable, setEnvironment, addPackages, endBackground };
}

/** @param {unknown} error @returns {never} */
function refuseImage(error) {
  process.stderr.write(`${describe(error)}\n`);
  process.exit(error instanceof ImageError ? EXIT_BAD_IMAGE : EXIT_GUEST_FAULT);
}

const { pyodide, handle, notify, interrupt, usable, setEnvironment, addPackages, endBackground } =
  await boot().catch(refuseImage);
if (!settings.keep_globals) cleanGlobals();

/** Show installed packages to the guest. The kernel process says which; the operating system lets nothing else be read.
 * @param {{folder: string, point: string, bytecode?: string}[]} packages */
function mountPackages(packages) {
  for (const each of packages) {
    try {
      mountPackage(each, (point, root) => storage?.mount(point, { root, readOnly: true }));
    } catch (error) {
      // The guest looks whether it is there, and raises; a second mount of the same changes nothing.
      process.stderr.write(`${each.point} was not mounted: ${describe(error)}\n`);
    }
  }
  addPackages(JSON.stringify(packages.map((entry) => entry.point)));
}

/** Deliver an interrupt to a guest that waits; one that computes finds it by itself. */
function deliverInterrupt() {
  if (!interrupts.take()) return;
  interrupt();
  for (const call of [...hostCalls.keys()]) takeHostCall(call)?.reject(new Error("interrupted"));
}

/** Python has swallowed an interrupt: it comes again, also when nothing computes any more, unless that is taken back. */
function interruptAgain(isWanted = true) {
  interrupts.again(isWanted);
  if (isWanted) setTimeout(deliverInterrupt, AGAIN_MS);
}

/** Run what has no reply, while a request waits. @param {string} text */
async function runBeside(text) {
  try {
    await notify.callPromising(text);
  } catch (error) {
    process.stderr.write(`${describe(error)}\n`);
  }
}

/** Run one request; requests come one at a time. @param {any} request @param {string} text */
async function run(request, text) {
  currentId = request.id;
  interrupts.begin(request.number);
  storage?.begin();
  try {
    const pending = await handle.callPromising(text);
    if (pending) {
      await pending;
      pending.destroy?.();
    }
  } catch (error) {
    fault(request.id, error);
  } finally {
    streams.flush();
    // The next request may be here already: a coroutine's reply goes up some turns before we hear of its end.
    interrupts.end(request.number);
    if (currentId === request.id) currentId = "";
  }
}

/** The guest's own machinery failed. Alive: an error reply; dead: end, and the kernel process says so.
 * @param {string} id @param {any} error */
function fault(id, error) {
  try {
    pyodide.runPython("None");
  } catch {
    const words = String(error?.message ?? error).trim();
    // Without memory Python can't even make the text of its error.
    if (words === "" || words.endsWith("MemoryError")) leave(EXIT_OUT_OF_MEMORY);
    process.stderr.write(`${words.slice(-1000)}\n`);
    leave(EXIT_GUEST_FAULT);
  }
  if (!hasMemory()) leave(EXIT_OUT_OF_MEMORY);
  const lines = String(error?.message ?? error).trim().split("\n");
  const content = { status: "error", ename: error?.type ?? "GuestFault", evalue: lines.at(-1), traceback: lines.slice(-20) };
  emit(JSON.stringify({ type: "reply", id, content }));
}

function hasMemory() {
  try {
    return usable();
  } catch {
    return false;
  }
}

/** Loading leaves 20 MB of garbage, which V8 would keep for long. Collecting it takes 50 ms: not while somebody waits. */
function collectGarbage() {
  setTimeout(() => (interrupts.current ? collectGarbage() : gc?.()), IDLE_MS).unref();
}

// Node would write a line of Pyodide's source, which is all of it, before the reason.
process.on("uncaughtException", (error) => {
  if (/** @type {any} */ (error).type === "KeyboardInterrupt") {
    interruptAgain(); // it came in the C code of a callback, which is none of the cell's
    return;
  }
  process.stderr.write(`${describe(error)}\n`);
  leave(EXIT_GUEST_FAULT);
});
globalThis.fetch = makeFetch(askNow);
readFrames(
  REQUESTS,
  (text) => {
    const end = text.indexOf("\n"); // of the JSON, where more follows
    const request = JSON.parse(end < 0 ? text : text.slice(0, end));
    if (request.op === "interrupt") {
      deliverInterrupt();
    } else if (request.op === "end_background") {
      interrupts.take(); // the pipe has it, too: once is enough
      if (interrupts.takeBackground()) endBackground();
    } else if (request.op === "mount") {
      mountPackages(request.content.packages);
    } else if (request.op === "result") {
      const { number, value, error } = request.content;
      interrupts.hold();
      if (error) takeHostCall(number)?.reject(new Error(error));
      else takeHostCall(number)?.resolve(end < 0 ? JSON.stringify(value) : text.slice(end + 1));
    } else if (request.op === "set_quota") {
      if (storage) storage.quota.limits = request.content;
    } else if (request.op === "set_environment") {
      setEnvironment(JSON.stringify(request.content));
    } else if (request.number === undefined) {
      void runBeside(text);
    } else {
      void run(request, text);
    }
  },
  () => process.exit(0),
);
collectGarbage();
emit(JSON.stringify({ type: "ready", id: "", content: {} }));
