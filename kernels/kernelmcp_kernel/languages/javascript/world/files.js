// `fs` and `path`: what of Node's makes sense where the files are a session's.
(host, world) => {
  "use strict";
  const { bytesOf } = world;

  const encodingOf = (options) => (typeof options === "string" ? options : options?.encoding);
  const ask = (operation, ...values) => {
    const answer = JSON.parse(host.file(operation, JSON.stringify(values)));
    if (!answer.error) return answer.value ?? undefined;
    throw Object.assign(new Error(answer.error.message), answer.error);
  };
  const checked = (answer) => {
    if (typeof answer !== "string") return answer;
    const { message, ...rest } = JSON.parse(answer);
    throw Object.assign(new Error(message), rest);
  };
  const write = (path, data, options, flag) => {
    const bytes = typeof data === "string" ? host.encode(data, encodingOf(options) ?? "utf-8") : bytesOf(data);
    checked(host.writeFile(String(path), bytes, String(options?.flag ?? flag)));
  };
  class Stats {
    constructor(found) {
      const { kind, ...rest } = found;
      Object.assign(this, rest, { mtime: new Date(rest.mtimeMs) });
      Object.defineProperty(this, "kind", { value: kind });
    }
    isFile() {
      return this.kind === "file";
    }
    isDirectory() {
      return this.kind === "directory";
    }
    isSymbolicLink() {
      return this.kind === "link";
    }
  }
  const entry = ({ name, kind, parentPath }) => Object.assign(new Stats({ kind }), { name, parentPath, mtime: undefined });
  const sync = {
    readFileSync: (path, options) => {
      const bytes = checked(host.readFile(String(path)));
      const encoding = encodingOf(options);
      return encoding ? host.decode(bytes, encoding) : Buffer.from(bytes);
    },
    writeFileSync: (path, data, options) => write(path, data, options, "w"),
    appendFileSync: (path, data, options) => write(path, data, options, "a"),
    readdirSync: (path = ".", options = {}) => {
      const found = ask("readdir", String(path), options.recursive === true);
      return options.withFileTypes ? found.map(entry) : found.map((one) => one.path);
    },
    existsSync: (path) => ask("exists", String(path)),
    statSync: (path) => new Stats(ask("stat", String(path))),
    lstatSync: (path) => new Stats(ask("lstat", String(path))),
    mkdirSync: (path, options) => ask("mkdir", String(path), options?.recursive === true),
    rmSync: (path, options) => ask("rm", String(path), options?.recursive === true, options?.force === true),
    rmdirSync: (path) => ask("rmdir", String(path)),
    unlinkSync: (path) => ask("unlink", String(path)),
    renameSync: (from, to) => ask("rename", String(from), String(to)),
    copyFileSync: (from, to, mode = 0) => ask("copy", String(from), String(to), Number(mode)),
    realpathSync: (path) => ask("realpath", String(path)),
  };
  const promises = Object.fromEntries(
    Object.entries(sync).map(([name, call]) => [name.slice(0, -"Sync".length), async (...values) => call(...values)]),
  );
  promises.access = async (path) => void ask("stat", String(path));
  const constants = { COPYFILE_EXCL: 1 };
  promises.constants = constants;
  const fs = { ...sync, constants, promises };

  const path = { sep: "/", delimiter: ":" };
  for (const name of ["basename", "dirname", "extname", "isAbsolute", "join", "normalize", "relative", "resolve"]) {
    path[name] = (...values) => JSON.parse(host.path(name, JSON.stringify(values)));
  }
  path.posix = path;
  Object.assign(world, { ask, fs, path, promises });
};
