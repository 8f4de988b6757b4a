// Attacks by JavaScript that owns its process: Node without Pyodide and without the permission model, as it would be after a
// break-out from both. Each function is one attempt; the comment above it is its title; what it returns is what it got hold
// of. Reads names from descriptor 3, a line each, and answers a line of JSON on descriptor 4.
import child_process from "node:child_process";
import cluster from "node:cluster";
import dgram from "node:dgram";
import fs from "node:fs";
import http from "node:http";
import inspector from "node:inspector";
import net from "node:net";
import { createRequire } from "node:module";
import os from "node:os";
import v8 from "node:v8";
import { Worker } from "node:worker_threads";

const t = JSON.parse(process.argv[2]);
const read = (path) => fs.readFileSync(path, "utf8");
const settled = (start) => new Promise((resolve, reject) => start(resolve, reject));
const connect = (...where) =>
  settled((resolve, reject) => {
    const socket = net.connect(...where);
    socket.on("error", reject);
    socket.on("connect", () => socket.end("javascript", () => resolve("connected")));
  });

const attacks = {
  control: () => fs.writeFileSync(`${t.workspace}/control`, "works"),
  "read the secret": () => read(t.secret),
  "read it through /proc/self/root": () => read(`/proc/self/root${t.secret}`),
  "read it through /proc/self/cwd": () => read(`/proc/self/cwd${t.secret}`),
  "read it through the parent's root": () => read(`/proc/${t.parent}/root${t.secret}`),
  "read another process's environment": () => read(`/proc/${t.victim}/environ`),
  "read the parent's descriptors": () => 
    fs
      .readdirSync(`/proc/${t.parent}/fd`)
      .map((fd) => `/proc/${t.parent}/fd/${fd}`)
      .filter((path) => fs.existsSync(path) && fs.statSync(path).isFile())
      .map(read)
      .join(),
  "read its own environment": () => JSON.stringify(process.env),
  "read its own environment through /proc": () => read("/proc/self/environ"),
  "read every open descriptor": () => {
    let found = "";
    for (let fd = 6; fd < 300; fd++) {
      const buffer = Buffer.alloc(100);
      try {
        fs.readSync(fd, buffer, 0, 100, 0);
        found += buffer.toString("latin1");
      } catch {}
    }
    return found;
  },
  "read after chdir": () => (process.chdir(t.outside), read("secret.txt")),
  "list the outside": () => (fs.readdirSync(t.outside).includes("secret.txt") ? "BREACH: it sees names" : ""),
  "copy the secret": () => (fs.copyFileSync(t.secret, `${t.workspace}/copy`), read(`${t.workspace}/copy`)),
  "follow a link that the host made": () => read(`${t.workspace}/link-of-the-host`),
  "make a symbolic link": () => (fs.symlinkSync(t.secret, `${t.workspace}/link`), read(`${t.workspace}/link`)),
  "make a hard link": () => (fs.linkSync(t.secret, `${t.workspace}/hard`), read(`${t.workspace}/hard`)),
  "swap a directory for a link while it is read": () => {
    for (let i = 0; i < 20; i++) {
      fs.mkdirSync(`${t.workspace}/race`, { recursive: true });
      fs.rmdirSync(`${t.workspace}/race`);
      fs.symlinkSync(t.outside, `${t.workspace}/race`);
      return read(`${t.workspace}/race/secret.txt`);
    }
  },
  "write outside": () => fs.writeFileSync(`${t.outside}/written`, "x"),
  "append to the secret": () => fs.appendFileSync(t.secret, "x"),
  "truncate the secret": () => fs.truncateSync(t.secret, 0),
  "open the secret for reading, with O_TRUNC": () => fs.openSync(t.secret, fs.constants.O_RDONLY | fs.constants.O_TRUNC),
  "delete the secret": () => fs.unlinkSync(t.secret),
  "move the secret into the workspace": () => (fs.renameSync(t.secret, `${t.workspace}/moved`), read(`${t.workspace}/moved`)),
  "move a file of the workspace outside": () => {
    fs.writeFileSync(`${t.workspace}/own`, "x");
    fs.renameSync(`${t.workspace}/own`, `${t.outside}/own`);
  },
  "make a directory outside": () => fs.mkdirSync(`${t.outside}/made`),
  "chmod the secret": () => fs.chmodSync(t.secret, 0o666),
  "set the secret's times": () => fs.utimesSync(t.secret, 1, 1),
  "chown the secret": () => fs.chownSync(t.secret, 12345, 12345),
  "write a diagnostic report outside": () => process.report.writeReport(`${t.outside}/report.json`),
  "write a heap snapshot outside": () => v8.writeHeapSnapshot(`${t.outside}/heap`),
  "make a database outside": () => {
    const { DatabaseSync } = createRequire(import.meta.url)("node:sqlite");
    new DatabaseSync(`${t.outside}/database`).exec("create table a (b)");
  },
  "connect by TCP": () => connect(t.ports.tcp4, "127.0.0.1"),
  "connect by TCP over IPv6": () => connect(t.ports.tcp6, "::1"),
  "connect to a Unix socket": () => connect(t.unix),
  "connect to a Unix socket in the workspace": () => connect(t.unix_inside),
  "connect to an abstract socket": () => connect(`\0${t.abstract}`),
  "send a datagram": () =>
    settled((resolve, reject) => {
      const socket = dgram.createSocket("udp4");
      socket.on("error", reject);
      socket.send("javascript", t.ports.udp4, "127.0.0.1", (error) => (error ? reject(error) : resolve("sent")));
    }),
  fetch: () => fetch(`http://127.0.0.1:${t.ports.tcp4}/`),
  "http.get": () => settled((resolve, reject) => http.get(`http://127.0.0.1:${t.ports.tcp4}/`, resolve).on("error", reject)),
  "listen on a port": () =>
    settled((resolve, reject) => {
      const server = net.createServer().on("error", reject);
      server.listen(0, "127.0.0.1", () => resolve("it says that it listens"));
    }),
  "listen on a Unix socket in the workspace": () =>
    settled((resolve, reject) => {
      const server = net.createServer().on("error", reject);
      server.listen(`${t.workspace}/own.sock`, () => resolve("it listens"));
    }),
  "open the inspector": () => {
    inspector.open(0, "127.0.0.1");
    return inspector.url();
  },
  "start a program": () => child_process.execFileSync("/bin/cat", [t.secret], { encoding: "utf8" }),
  "start a program through a shell": () => child_process.execSync(`cat ${t.secret}`, { encoding: "utf8" }),
  "start a detached program": () => {
    const child = child_process.spawn("/bin/sleep", ["30"], { detached: true, stdio: "ignore" });
    return settled((resolve, reject) => child.on("error", reject).on("spawn", () => resolve(`started ${child.pid}`)));
  },
  "fork Node": () => settled((resolve, reject) => child_process.fork(t.secret).on("error", reject).on("exit", resolve).on("spawn", () => resolve("BREACH: started"))),
  "cluster.fork": () => settled((resolve, reject) => cluster.fork().on("error", reject).on("exit", resolve).on("online", () => resolve("BREACH: started"))),
  "become another program": () => process.execve("/bin/sh", ["sh", "-c", `touch ${t.outside}/executed`], {}),
  "read the secret in a worker thread": () =>
    settled((resolve, reject) => {
      const code = `require("worker_threads").parentPort.postMessage(require("fs").readFileSync(${JSON.stringify(t.secret)}, "utf8"))`;
      new Worker(code, { eval: true }).on("error", reject).on("message", resolve);
    }),
  "signal another process": () => process.kill(t.victim, "SIGTERM"),
  "end another process": () => process.kill(t.victim, "SIGKILL"),
  "may it signal its parent?": () => process.kill(t.parent, 0) && "BREACH: it may",
  "may it signal its parent's group?": () => process.kill(-t.group, 0) && "BREACH: it may",
  "debug another process by SIGUSR1": () => process._debugProcess(t.victim),
  "change another process's priority": () => (os.setPriority(t.victim, 5), "BREACH: it did"),
  "write above the workspace": () => fs.writeFileSync(`${t.above}/packaging.py`, "x"),
  "chmod the folder above, then write": () => {
    fs.chmodSync(t.above, 0o777);
    fs.writeFileSync(`${t.above}/packaging.py`, "x");
  },
  "write a file of offered tools": () => fs.writeFileSync(`${t.offered}/index.json`, "x"),
  "put a file in place of one of offered tools": () => {
    fs.writeFileSync(`${t.workspace}/own`, "x");
    fs.renameSync(`${t.workspace}/own`, `${t.offered}/index.json`);
  },
  "rename the workspace itself": () => fs.renameSync(t.workspace, `${t.above}/elsewhere`),
  "a sparse file of 100 GB": () => {
    const fd = fs.openSync(`${t.workspace}/sparse`, "w");
    try {
      fs.ftruncateSync(fd, 100 * 2 ** 30);
    } finally {
      fs.closeSync(fd);
    }
  },
  "2,000 open files": () => {
    const open = [];
    try {
      while (open.length < 2000) open.push(fs.openSync(`${t.workspace}/many`, "w"));
    } finally {
      for (const fd of open) fs.closeSync(fd);
    }
    return "BREACH: it had 2,000";
  },
  "4 GB of array buffers": () => {
    const held = [];
    while (held.length < 4) held.push(new Uint8Array(2 ** 30).fill(1));
    return "BREACH: it has 4 GB";
  },
};

async function attempt(name) {
  try {
    return String(await attacks[name]());
  } catch (error) {
    return String(error).slice(0, 300);
  }
}

let waiting = "";
new net.Socket({ fd: 3, readable: true, writable: false }).on("data", async (chunk) => {
  waiting += chunk;
  const lines = waiting.split("\n");
  waiting = lines.pop() ?? "";
  for (const line of lines) {
    const answer = line === "list" ? Object.keys(attacks).slice(1) : await attempt(line);
    fs.writeSync(4, `${JSON.stringify(answer)}\n`);
  }
}).on("end", () => process.exit(0));
process.on("uncaughtException", () => {});
