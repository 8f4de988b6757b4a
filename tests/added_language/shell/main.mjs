// A stand-in for the shell's guest: lines of commands with `&&`, `|` and quotes, and what a hostile one would do.
//   echo, err, cat, sort, pwd, cd, export A=b, print A, exit N; python, python3, pip, pytest: programs of Python's;
//   wait: until an interrupt; deaf: ignores it; crash; call JSON: a host call with these arguments; late JSON: one when
//   the reply is sent; leave JSON: one, and the reply at once; answer JSON: replies with this.
import fs from "node:fs";
import path from "node:path";
import process from "node:process";
import { readFrames, writeFrame } from "../../host/frames.mjs";

const [REQUESTS, FRAMES] = [3, 4];
const workspace = process.argv[2];
const exported = {};
const calls = new Map();
let callCount = 0;
let current = "";
let isInterrupted = false;
let interrupt = () => {};

const send = (type, id, content) => writeFrame(FRAMES, JSON.stringify({ type, id, content }));
const onHost = (name, cwd) => path.join(workspace, path.posix.relative("/workspace", path.posix.resolve(cwd, name)));
const words = (text) => [...text.matchAll(/'([^']*)'|"([^"]*)"|(\S+)/g)].map((found) => found[1] ?? found[2] ?? found[3]);
const split = (text, by) => text.match(new RegExp(`(?:'[^']*'|"[^"]*"|[^${by}'"])+`, "gs")) ?? [];

function ask(call, id = current) {
  const number = ++callCount;
  if (isInterrupted) return Promise.resolve({ error: "interrupted" });
  send("call", id, { number, arguments: call });
  return new Promise((resolve) => calls.set(number, resolve));
}

async function run(line, world, stdin) {
  if (isInterrupted) throw new Error("KeyboardInterrupt");
  const [name, ...rest] = words(line);
  const text = rest.join(" ");
  if (name === "echo") return [0, `${text}\n`, ""];
  if (name === "err") return [1, "", `${text}\n`];
  if (name === "cat") return [0, rest.length ? fs.readFileSync(onHost(rest[0], world.cwd), "utf8") : stdin.toString(), ""];
  if (name === "sort") return [0, stdin.toString().split("\n").filter(Boolean).sort().map((each) => `${each}\n`).join(""), ""];
  if (name === "pwd") return [0, `${world.cwd}\n`, ""];
  if (name === "cd") world.cwd = path.posix.resolve(world.cwd, text);
  else if (name === "export") world.environment[text.split("=")[0]] = text.split("=")[1];
  else if (name === "print") return [0, `${world.environment[text] ?? ""}\n`, ""];
  else if (name === "exit") return [Number(text), "", ""];
  else if (name === "exec") world.merged = true;
  else if (name === "crash") process.exit(3);
  else if (name === "late") world.late = JSON.parse(line.slice(5));
  else if (name === "answer") world.answer = JSON.parse(line.slice(7));
  else if (name === "call") return [0, `${JSON.stringify(await ask(JSON.parse(line.slice(5))))}\n`, ""];
  else if (name === "leave") {
    ask(JSON.parse(line.slice(6)));
    world.answer = { status: "ok", exit_code: 0 };
  }  else if (name === "deaf") for (;;);
  else if (name === "wait") {
    if (!world.capture) send("stream", current, { name: "stdout", text: "waiting\n" });
    await new Promise((_, reject) => (interrupt = () => reject(new Error("KeyboardInterrupt"))));
  } else if (["python", "python3", "pip", "pytest"].includes(name)) {
    const { cwd, environment } = world;
    const asked = { call: "run_program", argv: [name, ...rest], cwd, environment, stdin: stdin?.toString("base64") ?? null };
    const { value, error } = await ask(asked);
    if (isInterrupted) throw new Error("KeyboardInterrupt");
    if (error) return [126, "", `${name}: ${error}\n`];
    return [value.exit_code, Buffer.from(value.stdout, "base64"), Buffer.from(value.stderr, "base64")];
  } else return [127, "", `${name}: command not found\n`];
  return [0, "", ""];
}

async function execute(id, content) {
  const state = content.cwd || content.environment ? { ...exported, ...content.environment } : exported;
  const world = { cwd: content.cwd ?? "/workspace", environment: state, capture: content.capture };
  const kept = { stdout: [], stderr: [] };
  const put = (name, data) => {
    if (!data.length) return;
    if (content.capture) kept[world.merged ? "stdout" : name].push(Buffer.from(data));
    else send("stream", id, { name, text: data.toString() });
  };
  let code = 0;
  for (const line of content.code.split("\n").filter(Boolean)) {
    for (const part of line.startsWith("exec ") ? [line] : split(line, "&")) {
      let data = content.stdin ? Buffer.from(content.stdin, "base64") : null;
      for (const command of split(part, "|")) {
        const [status, out, err] = await run(command.trim(), world, data);
        [code, data] = [status, Buffer.from(out)];
        put("stderr", Buffer.from(err));
      }
      put("stdout", data);
      if (code) break;
    }
  }
  const outputs = Object.fromEntries(Object.entries(kept).map(([name, data]) => [name, Buffer.concat(data).toString("base64")]));
  send("reply", id, world.answer ?? { status: "ok", exit_code: code, ...(content.capture ? outputs : {}) });
  if (world.late) ask(world.late, id);
}

async function answer({ id, content }) {
  try {
    await execute(id, content);
  } catch (error) {
    const ename = error.message === "KeyboardInterrupt" ? "KeyboardInterrupt" : "ShellError";
    send("reply", id, { status: "error", ename, evalue: error.message, traceback: [error.message] });
  }
}

readFrames(
  REQUESTS,
  (text) => {
    const request = JSON.parse(text);
    if (request.op === "interrupt") {
      send("interrupted", current, {});
      isInterrupted = true;
      for (const answerCall of calls.values()) answerCall({ error: "interrupted" });
      interrupt();
    } else if (request.op === "result") {
      calls.get(request.content.number)?.(request.content);
    } else if (request.number !== undefined) {
      current = request.id;
      isInterrupted = false;
      interrupt = () => {};
      answer(request);
    }
  },
  () => process.exit(0),
);
send("ready", "", {});
