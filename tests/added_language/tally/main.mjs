// The guest of Tally, a language of six statements: `name = 5`, `name`, `save file name`, `read path`,
// `wait` and `crash`.
import fs from "node:fs";
import path from "node:path";
import process from "node:process";
import { readFrames, writeFrame } from "../../host/frames.mjs";

const [REQUESTS, FRAMES] = [3, 4];
const workspace = process.argv[2];
const numbers = new Map();
let interrupt = () => {};

const send = (type, id, content) => writeFrame(FRAMES, JSON.stringify({ type, id, content }));

function wait(id) {
  send("stream", id, { name: "stdout", text: "waiting\n" });
  return new Promise((_, reject) => (interrupt = () => reject(new Error("KeyboardInterrupt"))));
}

async function execute(id, { code, arguments: words }) {
  if (words) send("stream", id, { name: "stdout", text: `[${words}]\n` });
  for (const line of code.split("\n").filter(Boolean)) {
    const [name, ...rest] = line.split(" ");
    if (rest[0] === "=") numbers.set(name, Number(rest[1]));
    else if (name === "wait") await wait(id);
    else if (name === "crash") process.exit(3);
    else if (name === "save") fs.writeFileSync(`${workspace}/${rest[0]}`, String(numbers.get(rest[1])));
    else if (name === "read") send("stream", id, { name: "stdout", text: fs.readFileSync(path.resolve(workspace, rest[0]), "utf8") });
    else if (numbers.has(name)) send("stream", id, { name: "stdout", text: `${numbers.get(name)}\n` });
    else throw new Error(`${name} is not defined`);
  }
}

async function answer({ op, id, content }) {
  if (op !== "execute") {
    const found = { matches: [...numbers.keys()], cursor_start: content.offset, cursor_end: content.cursor_pos };
    return send("reply", id, { status: "ok", ...found });
  }
  try {
    await execute(id, content);
    send("reply", id, { status: "ok" });
  } catch (error) {
    const ename = error.message === "KeyboardInterrupt" ? "KeyboardInterrupt" : "TallyError";
    const fault = { ename, evalue: error.message, traceback: [error.message] };
    send("error", id, fault);
    send("reply", id, { status: "error", ...fault });
  }
}

let current = "";
readFrames(
  REQUESTS,
  (text) => {
    const request = JSON.parse(text);
    if (request.op === "interrupt") {
      send("interrupted", current, {});
      interrupt();
    } else if (request.number !== undefined) {
      current = request.id;
      answer(request);
    }
  },
  () => process.exit(0),
);
send("ready", "", {});
