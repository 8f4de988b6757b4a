// Attacks by JavaScript in a cell: through the files and modules that it is given, through what crosses to Node and back, and
// through QuickJS. Each function is one attempt, its name the title; what it returns is what it got hold of. It may throw. `t` is
// what the attacker knows (world.py). Runs as cells of a session do.
const fs = require("node:fs");
const reader = "const p = globalThis.process?.getBuiltinModule?.('fs') ? process : null; return p && p.getBuiltinModule('fs').readFileSync";
const escaped = (made, t) => made.constructor.constructor(reader)()(t.secret, "utf8");
const caught = (act) => {
  try {
    act();
  } catch (error) {
    return error;
  }
};
const ATTACKS = {
  control: () => fs.writeFileSync("/workspace/control", "works"),
  "read the secret": (t) => fs.readFileSync(t.secret, "utf8"),
  "read it through /proc/self/root": (t) => fs.readFileSync(`/proc/self/root${t.secret}`, "utf8"),
  "../ out of the workspace": (t) => fs.readFileSync(`/workspace/${"../".repeat(20)}${t.secret.slice(1)}`, "utf8"),
  "../ out of /tmp": (t) => fs.readFileSync(`/tmp/x/../../../../..${t.secret}`, "utf8"),
  "a path with a NUL in it": (t) => fs.readFileSync(`${t.secret}\0/workspace/a`, "utf8"),
  "a path that changes when it is read again": (t) => {
    let count = 0;
    return fs.readFileSync({ toString: () => (count++ ? t.secret : "/workspace/control") }, "utf8") + fs.readFileSync([t.secret], "utf8");
  },
  "the workspace by its name on the host": (t) => fs.readFileSync(`${t.workspace}/../../outside/secret.txt`, "utf8"),
  "follow a link that the host made": () => fs.readFileSync("/workspace/link-of-the-host", "utf8"),
  "copy what such a link leads to": () => (fs.copyFileSync("/workspace/link-of-the-host", "/workspace/copy"), fs.readFileSync("/workspace/copy", "utf8")),
  "import what such a link leads to": async () => {
    try {
      return Object.keys(await import("/workspace/link-of-the-host"));
    } catch (error) {
      return String(error);
    }
  },
  "write through such a link": () => fs.writeFileSync("/workspace/link-of-the-host", "changed"),
  "append through such a link": () => fs.appendFileSync("/workspace/link-of-the-host", "changed"),
  "where such a link leads": (t) => (fs.realpathSync("/workspace/link-of-the-host").includes("secret.txt") ? "BREACH: it knows" : ""),
  "require the secret": (t) => require(t.secret),
  "import the secret": async (t) => JSON.stringify(await import(t.secret)),
  "import a file: address": async (t) => JSON.stringify(await import(`file://${t.secret}`)),
  "import a data: address": async () => JSON.stringify(await import("data:text/javascript,export default process.env")),
  "list the outside": (t) => (fs.readdirSync(t.outside).includes("secret.txt") ? "BREACH: it sees names" : ""),
  "list / of the host": () => (fs.readdirSync("/").includes("etc") ? "BREACH: it sees names" : ""),
  "does the secret exist": (t) => (fs.existsSync(t.secret) ? "BREACH: it knows" : ""),
  "go outside, then read": (t) => (process.chdir(t.outside), fs.readFileSync("secret.txt", "utf8")),
  "write outside": (t) => fs.writeFileSync(`${t.outside}/written`, "x"),
  "make a directory outside": (t) => fs.mkdirSync(`${t.outside}/made`, { recursive: true }),
  "delete the secret": (t) => fs.rmSync(t.secret, { force: true }),
  "move the secret into the workspace": (t) => (fs.renameSync(t.secret, "/workspace/moved"), fs.readFileSync("/workspace/moved", "utf8")),
  "move a file of the workspace outside": (t) => (fs.writeFileSync("own", "x"), fs.renameSync("own", `${t.outside}/own`)),
  "process.env": () => JSON.stringify(process.env),
  "its environment through /proc": () => fs.readFileSync("/proc/self/environ", "utf8"),
  "fetch from loopback": async (t) => (await fetch(`http://127.0.0.1:${t.ports.tcp4}/fetch`)).text(),
  "fetch a file: address": async (t) => (await fetch(`file://${t.secret}`)).text(),
  "node:child_process": (t) => require("node:child_process").execFileSync("cat", [t.secret]),
  "import of node:child_process": async (t) => (await import("node:child_process")).execFileSync("cat", [t.secret]),
  "node:net, node:worker_threads, node:module": () => ["net", "worker_threads", "module", "os", "vm", "v8"].map((name) => Object.keys(require(`node:${name}`))),
  "a module by a name of Object.prototype": () => Object.keys(require("constructor")).concat(Object.keys(require("__proto__"))),
  "QuickJS's own std and os": async (t) => (await import("qjs:std").catch(() => import("std"))).loadFile(t.secret),
  "process.binding and getBuiltinModule": (t) => (process.binding ?? process.getBuiltinModule)("fs").readFileSync(t.secret, "utf8"),
  "process.kill of another process": (t) => process.kill(t.victim, "SIGTERM"),
  "process.dlopen": (t) => process.dlopen({}, t.secret),
  "the constructor of a function of the host's": (t) => escaped(console.log, t),
  "the constructor of an error of the host's": (t) => escaped(caught(() => fs.readFileSync("/no")), t),
  "the constructor of an error in a service": (t) => escaped(caught(() => btoa("x".repeat(2 ** 26))), t),
  "the constructor of a promise of the host's": (t) => escaped(fetch("http://127.0.0.1:1/").catch(() => 0), t),
  "the constructor of bytes of the host's": (t) => escaped(new TextEncoder().encode("x").buffer, t),
  "the constructor of what a custom inspect is given": (t) => {
    let found = "";
    console.log({ [Symbol.for("nodejs.util.inspect.custom")]: (...given) => (found = given.map((one) => String(caught(() => escaped(one, t)))).join()) });
    return found;
  },
  "the frames of a stack": (t) => {
    let frames = [];
    Error.prepareStackTrace = (_, all) => (frames = all);
    void caught(() => fs.readFileSync({ toString: () => new Error().stack }));
    delete Error.prepareStackTrace;
    return frames.map((frame) => String(caught(() => escaped(frame.getFunction?.() ?? frame.getThis?.() ?? frame, t)))).join();
  },
  "caller and arguments of a callback": (t) => {
    const callback = function () {
      return escaped(callback.caller ?? arguments.callee.caller, t);
    };
    return fs.readFileSync({ toString: callback });
  },
  "Object.prototype, as Node would see it": (t) => {
    Object.prototype.env = Object.prototype.shell = t.secret;
    Object.prototype.flag = "r";
    try {
      return fs.readFileSync("/workspace/none", "utf8");
    } finally {
      delete Object.prototype.env;
      delete Object.prototype.shell;
      delete Object.prototype.flag;
    }
  },
  "toJSON changes what is asked of the host": (t) => {
    Array.prototype.toJSON = () => [t.secret, true, true];
    try {
      return String(fs.statSync("/workspace").size) + fs.realpathSync("/workspace") + fs.readdirSync("/workspace");
    } finally {
      delete Array.prototype.toJSON;
    }
  },
  "eval and new Function": (t) => new Function(reader)()(t.secret, "utf8") + eval("process.mainModule.require('fs')").readFileSync(t.secret, "utf8"),
  "WebAssembly, Worker, importScripts": (t) => [typeof WebAssembly, typeof Worker, typeof importScripts].some((kind) => kind !== "undefined") && "BREACH: there is one",
  "6 GB of array buffers": () => {
    const held = [];
    while (held.length < 6) held.push(new Uint8Array(2 ** 30).fill(1));
    return "BREACH: it has 6 GB";
  },
};
async function attempt(title, t) {
  try {
    return String(await ATTACKS[title](t));
  } catch (error) {
    return String(error).slice(0, 300);
  }
}
