// A guest process: Pyodide restored from the boot image, answering requests of the kernel process.
//   node ... python_guest.mjs '{"runtime":..., "image":..., "build_id":..., "packages":..., "workspace":..., "tmp":..., "offered":..., "volumes":..., "quota":...,
//                      "working_directory":..., "seed":..., "folder":..., "how_to_see_more":..., "needed_by":..., "keep_globals":..., "keep_imports":...}'
// Descriptors: 3 requests in, 4 frames out, 5 interrupts in (non-blocking), 6 state out, 7 state in, and the image. Everything else is
// closed or /dev/null.
import process from "node:process";
import { StringDecoder } from "node:string_decoder";
import { EBUSY, describe } from "./errno.mjs";
import { makeFetch } from "./fetch.mjs";
import { readFrames, writeFrame } from "./frames.mjs";
import { cleanGlobals } from "./globals.mjs";
import { Image, ImageError } from "./image.mjs";
import { Interrupts } from "./interrupts.mjs";
import { leave } from "./leave.mjs";
import { Recorder } from "./libraries.mjs";
import { loadRuntime, mountPackage } from "./pyodide.mjs";
import { Finalizers } from "./state/finalizers.mjs";
import { loadState } from "./state/load_state.mjs";
import { saveState } from "./state/save_state.mjs";
import { SessionState } from "./state/session_state.mjs";
import { StateError } from "./state/state_error.mjs";
import { Storage } from "./storage.mjs";
import { Streams } from "./streams.mjs";
import { chartDrawer } from "./vega.mjs";

const [REQUESTS, FRAMES, INTERRUPTS, STATE_OUT, STATE_IN] = [3, 4, 5, 6, 7];
const COLLECT_MS = 2000; // until what a start or a loaded state has left is collected
const PREPARE_MS = 1000; // of idleness, before a guest that has run nothing prepares to load a state
const SETTLE_MS = 5; // a session may need some turns of the event loop after its last reply until it can be saved
const SETTLE_TURNS = 20;
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
/** Of guest output below Python: C code and os.write to the standard descriptors.
 * @type {Record<string, StringDecoder>} */
const decoders = { stdout: new StringDecoder("utf8"), stderr: new StringDecoder("utf8") };
/** Show the beginning of a character whose other bytes have not come. @param {string} name */
const endCharacter = (name) => {
  const text = decoders[name].end();
  if (text) streams.write(name, text, currentId);
};
/** @type {Storage | undefined} */
let storage;
/** One frame, after all that happened before it: what was printed, which files were written. @param {string} text */
const emit = (text) => {
  for (const name in decoders) endCharacter(name);
  streams.flush();
  const changed = storage?.takeChanged();
  if (changed?.length) emitNow(JSON.stringify({ type: "files", id: currentId, content: { changed } }));
  emitNow(text);
};
const interrupts = new Interrupts(
  INTERRUPTS,
  () => emit(JSON.stringify({ type: "interrupted", id: currentId, content: {} })),
  () => streams.tick(),
  () => guest.after_signal(),
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

/** The cell is interrupted: who waits for the host no longer does. */
function rejectHostCalls() {
  for (const call of [...hostCalls.keys()]) takeHostCall(call)?.reject(new Error("interrupted"));
}

/** @param {number} call @returns {Waiter | undefined} */
function takeHostCall(call) {
  const waiter = hostCalls.get(call);
  hostCalls.delete(call);
  return waiter;
}

/** @param {number} status @param {string} [said] */
function end(status, said) {
  streams.flush();
  leave(status, said);
}

/** @param {string} name of a standard stream */
function rawStream(name) {
  return {
    /** @param {Uint8Array} bytes */
    write(bytes) {
      streams.write(name, decoders[name].write(Buffer.from(bytes)), currentId);
      return bytes.length;
    },
  };
}

async function boot() {
  const image = new Image(settings.image, settings.build_id, settings.packages);
  const recorder = new Recorder();
  const finalizers = new Finalizers();
  const loadOptions = (/** @type {any} */ factory) =>
    image.loadOptions(async (options) => {
      const module = await finalizers.load(factory, options);
      recorder.watch(module);
      return module;
    });
  const pyodide = await loadRuntime(settings.runtime, { loadOptions }, settings, () => interrupts.check());
  storage = new Storage(pyodide, settings.quota);
  storage.mount("/workspace", { root: settings.workspace, counted: true, noted: "" });
  storage.mount("/tmp", { root: settings.tmp, counted: true });
  storage.mount("/servers", { root: settings.offered, readOnly: true });
  for (const { name, path, mode } of settings.volumes)
    storage.mount(`/volumes/${name}`, { root: path, readOnly: mode !== "rw", noted: `/volumes/${name}/` });
  pyodide.FS.chdir(settings.working_directory);
  // Closing Pyodide's own stdin calls fsync, which the permission model forbids.
  pyodide.setStdin({ read: () => 0, fsync: () => undefined });
  pyodide.setStdout(rawStream("stdout"));
  pyodide.setStderr(rawStream("stderr"));
  const host = {
    emit,
    write_stream: (/** @type {string} */ name, /** @type {string} */ text, /** @type {string} */ id) => {
      endCharacter(name);
      streams.write(name, text, id);
    },
    look_soon: () => interrupts.lookSoon(),
    flush_streams: () => streams.flush(),
    ask,
    reject_calls: rejectHostCalls,
    nap: (/** @type {number} */ ms) => interrupts.nap(ms),
    heard: () => interrupts.heard(),
    was_interrupted: () => interrupts.wasTaken(),
    interrupt_again: interruptAgain,
    exit: end,
    draw_chart: chartDrawer(settings.runtime),
  };
  const connect = (/** @type {boolean} */ continues) => {
    const module = pyodide.pyimport("kernelmcp_guest");
    const companions = JSON.stringify(settings.needed_by ?? {});
    module.attach(host, settings.folder ?? "", settings.how_to_see_more, companions, continues, settings.seed ?? "");
    pyodide.setInterruptBuffer(interrupts.buffer(pyodide._module));
    // Looked up once: each look-up makes a proxy.
    const { handle, notify, interrupt, after_signal, end_background } = module;
    const { usable, set_environment, add_packages, reasons_against_saving, reseed } = module;
    const ofInterrupts = { interrupt, after_signal, end_background };
    return { handle, notify, ...ofInterrupts, usable, set_environment, add_packages, reasons_against_saving, reseed };
  };
  const guest = connect(false);
  const session = new SessionState(pyodide, image, recorder, finalizers, { host, ...host });
  return { pyodide, connect, guest, session };
}

/** @param {unknown} error @returns {never} */
function refuseImage(error) {
  leave(error instanceof ImageError ? EXIT_BAD_IMAGE : EXIT_GUEST_FAULT, `${describe(error)}\n`);
}

const { pyodide, connect, session, ...booted } = await boot().catch(refuseImage);
let { guest } = booted; // of the heap: another one after a state was loaded
let wasUsed = false; // a request has run
let touches = 0; // how often the heap was touched from outside
if (!settings.keep_globals) cleanGlobals();

/** Show installed packages to the guest. The kernel process says which; the operating system lets nothing else be read.
 * @param {{folder: string, point: string, bytecode?: string}[]} packages */
function mountPackages(packages) {
  for (const each of packages) {
    try {
      mountPackage(each, (point, root) => storage?.mount(point, { root, readOnly: true }));
    } catch (error) {
      // The guest looks whether it is there, and raises. EBUSY: it is mounted already, as all are after a state was
      // loaded. That is not worth a line, since the last line here is taken for the reason of the guest's death.
      const isMounted = /** @type {any} */ (error)?.errno === EBUSY;
      if (!isMounted) process.stderr.write(`${each.point} was not mounted: ${describe(error)}\n`);
    }
  }
  guest.add_packages(JSON.stringify(packages.map((entry) => entry.point)));
}

/** Deliver an interrupt to a guest that waits; one that computes finds it by itself. */
function deliverInterrupt() {
  if (interrupts.take()) guest.interrupt();
}

/** Python has swallowed an interrupt: it comes again, also when nothing computes any more, unless that is taken back. */
function interruptAgain(isWanted = true) {
  interrupts.again(isWanted);
  if (isWanted) setTimeout(deliverInterrupt, AGAIN_MS);
}

/** Run what has no reply, while a request waits. @param {string} id @param {string} text */
async function runBeside(id, text) {
  wasUsed = true;
  try {
    await guest.notify.callPromising(text);
  } catch (error) {
    process.stderr.write(`${describe(error)}\n`);
    emit(JSON.stringify({ type: "comm_done", id, content: {} }));
  }
}

/** Run one request; requests come one at a time. @param {any} request @param {string} text */
async function run(request, text) {
  wasUsed = true;
  currentId = request.id;
  interrupts.begin(request.number);
  storage?.begin();
  try {
    const pending = await guest.handle.callPromising(text);
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
    if (words === "" || words.endsWith("MemoryError")) end(EXIT_OUT_OF_MEMORY);
    end(EXIT_GUEST_FAULT, `${words.slice(-1000)}\n`);
  }
  if (!hasMemory()) end(EXIT_OUT_OF_MEMORY);
  const lines = String(error?.message ?? error).trim().split("\n");
  const content = { status: "error", ename: error?.type ?? "GuestFault", evalue: lines.at(-1), traceback: lines.slice(-20) };
  emit(JSON.stringify({ type: "reply", id, content }));
}

function hasMemory() {
  try {
    return guest.usable();
  } catch {
    return false;
  }
}

/** Whatever is called next touches the heap. */
function touch() {
  touches++;
  session.dropPrepared();
}

/** Save the session, or load one; the answer says what stands in the way. @param {string} op
 * @param {{reseed?: boolean} & Parameters<typeof saveState>[2]} how */
async function runStateRequest(op, how) {
  try {
    const content = op === "save_state" ? await save(how) : await load(how.reseed === true);
    emit(JSON.stringify({ type: "state", id: "", content: { ok: true, ...content } }));
  } catch (error) {
    const reasons = error instanceof StateError ? error.reasons : [describe(error)];
    emit(JSON.stringify({ type: "state", id: "", content: { ok: false, reasons } }));
    if (op === "load_state") end(EXIT_GUEST_FAULT);
  }
}

/** @param {Parameters<typeof saveState>[2]} how */
async function save(how) {
  let reasons = obstacles(true);
  for (let turn = 0; reasons.length && turn < SETTLE_TURNS; turn++) {
    await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
    reasons = obstacles(false);
    if (!reasons.length) reasons = obstacles(true);
  }
  if (reasons.length) throw new StateError(...reasons);
  return saveState(session, STATE_OUT, how);
}

/** @param {boolean} collect collect garbage first @returns {string[]} */
function obstacles(collect) {
  if (currentId || interrupts.current) return ["a cell is running"];
  if (hostCalls.size) return ["a call waits for its answer"];
  touch();
  return JSON.parse(guest.reasons_against_saving.callKwargs({ collect }));
}

/** @param {boolean} reseed the session goes on elsewhere, too, and must not draw the same random numbers */
async function load(reseed) {
  if (wasUsed) throw new StateError("this guest has run a cell already");
  const content = await loadState(session, STATE_IN);
  guest = connect(true);
  if (reseed) guest.reseed();
  if (!hasMemory()) throw new StateError("there is no memory left");
  wasUsed = true;
  collectGarbage();
  return content;
}

/** Loading a state leaves garbage, and so do the libraries of packages, which V8 would keep for long. Collecting it takes 20 ms of CPU
 * or more: not while somebody waits, and not for a guest that is gone in a moment. */
function collectGarbage() {
  setTimeout(() => (interrupts.current ? collectGarbage() : gc?.()), COLLECT_MS).unref();
}

/** A guest that waits for its first cell may be given a session's state instead. */
function prepareToLoad() {
  const before = touches;
  const isStopped = () => touches !== before || held !== undefined || wasUsed;
  const timer = setTimeout(async () => {
    if (wasUsed) return;
    if (!isStopped()) await session.prepare(isStopped);
    if (isStopped()) prepareToLoad();
  }, PREPARE_MS);
  timer.unref();
}

const DURING_STATE = ["interrupt", "end_background", "result"];
/** @type {string[] | undefined} frames that have come while a state is being saved or loaded */
let held;

/** Handle one frame. @param {string} text */
function receive(text) {
  const end = text.indexOf("\n"); // of the JSON, where more follows
  const request = JSON.parse(end < 0 ? text : text.slice(0, end));
  if (held && !DURING_STATE.includes(request.op)) {
    held.push(text);
    return;
  }
  if (request.op !== "save_state" && request.op !== "load_state") touch();
  if (request.op === "interrupt") {
    deliverInterrupt();
  } else if (request.op === "end_background") {
    interrupts.take(); // the pipe has it, too: once is enough
    if (interrupts.takeBackground()) guest.end_background();
  } else if (request.op === "mount") {
    mountPackages(request.content.packages);
  } else if (request.op === "result") {
    const { number, value, error } = request.content;
    interrupts.hold();
    storage?.lookAgain();
    if (error) takeHostCall(number)?.reject(new Error(error));
    else takeHostCall(number)?.resolve(end < 0 ? JSON.stringify(value) : text.slice(end + 1));
  } else if (request.op === "set_quota") {
    if (storage) storage.quota.limits = request.content;
  } else if (request.op === "save_state" || request.op === "load_state") {
    held = [];
    void runStateRequest(request.op, request.content).finally(() => {
      const texts = held ?? [];
      held = undefined;
      for (const each of texts) receive(each);
    });
  } else if (request.op === "set_environment") {
    guest.set_environment(JSON.stringify(request.content));
  } else if (request.number === undefined) {
    void runBeside(request.id, text);
  } else {
    void run(request, text);
  }
}

// Node would write a line of Pyodide's source, which is all of it, before the reason.
process.on("uncaughtException", (error) => {
  if (/** @type {any} */ (error).type === "KeyboardInterrupt") {
    interruptAgain(); // it came in the C code of a callback, which is none of the cell's
    return;
  }
  end(EXIT_GUEST_FAULT, `${describe(error)}\n`);
});
globalThis.fetch = makeFetch(askNow);
readFrames(REQUESTS, receive, () => leave(0));
if (settings.packages?.length) collectGarbage();
prepareToLoad();
emit(JSON.stringify({ type: "ready", id: "", content: {} }));
