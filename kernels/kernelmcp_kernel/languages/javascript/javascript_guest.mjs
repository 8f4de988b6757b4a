// A guest process for JavaScript: cells come as requests, and what they put out goes up as frames.
//   node ... javascript_guest.mjs '{"workspace":..., "tmp":..., "offered":..., "volumes":..., "quota":..., "working_directory":...}'
// Descriptors: 3 requests in, 4 frames out, 5 interrupts in (non-blocking), 6 state out, 7 state in. Everything else is closed or
// /dev/null.
import process from "node:process";
import { MAX_FRAME_BYTES, readFrames, writeFrame } from "../../host/frames.mjs";
import { Interrupts } from "../../host/interrupts.mjs";
import { leave } from "../../host/leave.mjs";
import { Quota } from "../../host/quota.mjs";
import { Streams } from "../../host/streams.mjs";
import { completeness } from "./cells.mjs";
import { Engine } from "./engine.mjs";
import { Files } from "./files.mjs";
import { Interpreter } from "./interpreter.mjs";
import { Realm, Thrown } from "./realm.mjs";
import { makeServices } from "./services.mjs";

const [REQUESTS, FRAMES, INTERRUPTS, STATE_OUT, STATE_IN] = [3, 4, 5, 6, 7];
const EXIT_GUEST_FAULT = 70;
const settings = JSON.parse(process.argv[2]);

let currentId = "";
let cellId = ""; // of the newest cell, which has what timers print after it
let hostCallCount = 0;
/** @typedef {import("./tools.mjs").Answer} Answer */
/** @type {Map<number, (answer: Answer) => void>} */
const hostCalls = new Map();

const emitNow = (/** @type {string} */ text) => writeFrame(FRAMES, text);
const streams = new Streams(emitNow);

/** @param {string} type @param {object} content @param {string} [id] */
function send(type, content, id = currentId) {
  const text = JSON.stringify({ type, id, content });
  if (Buffer.byteLength(text) > MAX_FRAME_BYTES) throw new RangeError("too large to be sent");
  streams.flush();
  const changed = files.takeChanged();
  if (changed.length) emitNow(JSON.stringify({ type: "files", id, content: { changed } }));
  emitNow(text);
}

/** A host call; its answer. @param {object} call @returns {Promise<Answer>} */
function ask(call) {
  if (!currentId) return Promise.resolve({ error: "a request is made only while a cell runs" });
  const number = ++hostCallCount;
  return new Promise((resolve) => {
    send("call", { number, arguments: call }); // throws what is too large
    hostCalls.set(number, resolve);
  });
}

/** @param {number} number @param {Answer} answer */
function answerHostCall(number, answer) {
  hostCalls.get(number)?.(answer);
  hostCalls.delete(number);
}

const interrupts = new Interrupts(
  INTERRUPTS,
  () => send("interrupted", {}),
  () => streams.tick(),
);
const folders = [
  { point: "/workspace", root: settings.workspace, counted: true, noted: "" },
  { point: "/tmp", root: settings.tmp, counted: true },
  { point: "/servers", root: settings.offered, readOnly: true },
  .../** @type {any[]} */ (settings.volumes).map(({ name, path, mode }) => ({
    point: `/volumes/${name}`,
    root: path,
    readOnly: mode !== "rw",
    noted: `/volumes/${name}/`,
  })),
];
const quota = new Quota(settings.quota, [settings.workspace, settings.tmp], () =>
  Object.assign(new Error("ENOSPC: no space left on device"), { code: "ENOSPC" }),
);
const files = new Files(folders, quota, settings.working_directory);
/** @type {Interpreter} */
let interpreter;
const services = makeServices({
  ask,
  files,
  send: (type, content) => send(type, content, cellId),
  write: (name, text) => streams.write(name, text.toWellFormed(), cellId),
  fire: (number) => interpreter.fire(number),
  uncaught: (fault) => {
    if (!interpreter.isEnding) interpreter.complain(new Thrown(fault), "Uncaught (in promise)");
  },
});
const realm = new Realm(await Engine.make(), services.all, isInterrupted, () => interpreter.turn());
interpreter = new Interpreter(realm, services);

/** Asked by QuickJS while anything runs, some thousand times a second. */
function isInterrupted() {
  if (!interpreter.isEnding && interrupts.isDue()) interpreter.isEnding = interrupts.take() || interrupts.takeBackground();
  return interpreter.isEnding;
}

/** Run one request; they come one at a time. @param {any} request */
async function run({ op, id, number, content }) {
  currentId = id;
  if (op === "execute") cellId = id;
  interrupts.begin(number);
  quota.begin();
  /** @type {any} */
  let reply;
  if (op === "execute") reply = await interpreter.execute(content, send);
  else if (op === "complete") reply = found(() => interpreter.complete(content));
  else if (op === "inspect") reply = found(() => interpreter.inspect(content));
  else if (op === "is_complete") reply = { status: completeness(content.code.slice(content.offset)) };
  else reply = { status: "error", ename: "NotImplementedError", evalue: op, traceback: [] };
  send("reply", reply, id);
  interrupts.current = 0;
  currentId = "";
}

/** Save the session's variables, or load them; the answer says what stands in the way. @param {"save_state" | "load_state"} op
 * @param {{reseed?: boolean, is_plain?: boolean}} how */
async function moveState(op, how) {
  const guest = { realm, files, services, isIdle: () => interpreter.isIdle() };
  try {
    const { loadState, saveState } = await import("./state.mjs");
    const found = op === "save_state" ? saveState(guest, STATE_OUT, how) : loadState(guest, STATE_IN, how.reseed === true);
    send("state", { ok: true, ...found }, "");
  } catch (error) {
    const { message, reasons = [message] } = /** @type {any} */ (error);
    send("state", { ok: false, reasons }, "");
    if (op === "load_state") leave(EXIT_GUEST_FAULT);
  }
}

/** What a cell has broken finds nothing. @param {() => object} look */
function found(look) {
  try {
    return look();
  } catch (error) {
    return { status: "error", ename: "Error", evalue: String(error), traceback: [] };
  }
}

function deliverInterrupt() {
  if (!interrupts.take()) return;
  for (const number of [...hostCalls.keys()]) answerHostCall(number, { error: "interrupted" });
  interpreter.interrupt();
}

readFrames(
  REQUESTS,
  (text) => {
    const end = text.indexOf("\n"); // of the JSON, where more follows
    const request = JSON.parse(end < 0 ? text : text.slice(0, end));
    const { op, content } = request;
    if (end >= 0) content.lines = text.slice(end + 1);
    if (op === "interrupt") deliverInterrupt();
    else if (op === "end_background") {
      interrupts.take(); // the pipe has it, too: once is enough
      if (interrupts.takeBackground()) interpreter.endBackground();
    } else if (op === "result") answerHostCall(content.number, content);
    else if (op === "set_quota") quota.limits = content;
    else if (op === "set_environment") interpreter.tell("setEnvironment", JSON.stringify(content));
    else if (op === "save_state" || op === "load_state") void moveState(op, content);
    else if (request.number !== undefined) void run(request);
  },
  () => leave(0),
);
send("ready", {}, "");
