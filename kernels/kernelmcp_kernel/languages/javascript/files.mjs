// The session's folders as a cell sees them: /workspace, /tmp and /volumes/NAME, and nothing else. Convenience, never a
// boundary: what a link leads to, and what a process may touch at all, the operating system decides.
import fs from "node:fs";
import path from "node:path";

const KINDS = { isFile: "file", isDirectory: "directory", isSymbolicLink: "link" };

/** @typedef {{point: string, root: string, counted?: boolean, noted?: string, readOnly?: boolean}} Folder */

export class Files {
  /** @param {Folder[]} folders @param {import("../../host/quota.mjs").Quota} quota @param {string} workingDirectory */
  constructor(folders, quota, workingDirectory) {
    this.folders = folders;
    this.quota = quota;
    this.workingDirectory = workingDirectory;
    /** @type {Set<string>} paths in the workspace, or /volumes/NAME/PATH, that were made or changed */
    this.changed = new Set();
  }

  /** @param {string} name @param {any[]} values @returns {any} Throws Node's errors, with a cell's paths in them. */
  call(name, values) {
    const operation = Object.hasOwn(OPERATIONS, name) && OPERATIONS[name];
    if (!operation) throw new Error(`there is no ${name}`);
    return this.#said(name, String(values[0]), () => operation(this, ...values));
  }

  /** @param {string} name @returns {Buffer} */
  read(name) {
    return this.#said("open", name, () =>
      withOpen(this.find(name).file, O_RDONLY, (fd, found) => {
        checkSize(found.size);
        const bytes = Buffer.allocUnsafe(found.size);
        let done = 0;
        for (let count = -1; count && done < bytes.length; done += count) count = fs.readSync(fd, bytes, { offset: done });
        return bytes.subarray(0, done);
      }),
    );
  }

  /** @param {string} name @param {Uint8Array} bytes @param {string} flag as Node's */
  write(name, bytes, flag) {
    this.#said("open", name, () => {
      const flags = WRITING.find(([names]) => names.test(flag))?.[1];
      if (flags === undefined) throw fault("EINVAL", `a file is not written with the flag ${flag.slice(0, 50)}`);
      const target = this.toChange(name);
      const before = fs.statSync(target.file, { throwIfNoEntry: false });
      if (target.counted && !before && flags & O_CREAT) this.quota.reserve(0, 1);
      withOpen(target.file, O_WRONLY | (flags & ~O_TRUNC), (fd, found) => {
        const kept = flags & O_APPEND ? found.size : flags & O_TRUNC ? 0 : Math.max(0, found.size - bytes.length);
        if (target.counted) this.quota.reserve(bytes.length + kept - found.size, 0);
        if (flags & O_TRUNC && found.size) fs.ftruncateSync(fd);
        for (let done = 0; done < bytes.length; ) done += fs.writeSync(fd, bytes, done);
      });
      this.note(target);
    });
  }

  /** A cell's path on the host. @param {string} name @returns {Folder & {file: string, name: string}} */
  find(name) {
    if (name.includes("\0")) throw fault("EINVAL", "invalid argument");
    const whole = path.posix.resolve(this.workingDirectory, name);
    const folder = this.folders.find(({ point }) => whole === point || whole.startsWith(`${point}/`));
    if (!folder) throw fault("ENOENT", "no such file or directory");
    return { ...folder, name: whole, file: path.join(folder.root, whole.slice(folder.point.length)) };
  }

  /** @param {string} name */
  toChange(name) {
    const found = this.find(name);
    if (found.readOnly) throw fault("EROFS", "read-only file system");
    return found;
  }

  /** @param {Folder & {file: string}} found */
  note(found) {
    if (found.noted === undefined || this.changed.size >= MAX_CHANGED) return;
    this.changed.add(found.noted + path.relative(found.root, found.file));
  }

  takeChanged() {
    const changed = [...this.changed];
    this.changed.clear();
    return changed;
  }

  /** @template T @param {string} call @param {string} name @param {() => T} act @returns {T} */
  #said(call, name, act) {
    try {
      return act();
    } catch (error) {
      const { code = "EIO", message } = /** @type {NodeJS.ErrnoException} */ (error);
      const words = /^[A-Z]+: ([^,]*)/.exec(message)?.[1] ?? message;
      // The permission model's own word for what the operating system would refuse, and rmSync's.
      if (code === "ERR_ACCESS_DENIED") throw fault("EACCES", "permission denied", call, name);
      if (code === "ERR_FS_EISDIR") throw fault("EISDIR", "illegal operation on a directory, rm it with recursive", call, name);
      throw fault(code, words, call, name);
    }
  }
}

const MAX_CHANGED = 1000;
const MAX_READ_BYTES = 32 * 1024 * 1024;
// Of a listing, whose entries are Node's before they are the cell's.
const MAX_LISTED = 200_000;
const MAX_LISTED_CHARS = 16 * 1024 * 1024;
const { COPYFILE_EXCL, O_APPEND, O_CREAT, O_EXCL, O_NONBLOCK, O_RDONLY, O_TRUNC, O_WRONLY } = fs.constants;
/** @type {[RegExp, number][]} Node's names of flags */
const WRITING = [
  [/^(r|rs|sr)\+$/, 0],
  [/^w\+?$/, O_CREAT | O_TRUNC],
  [/^(wx|xw)\+?$/, O_CREAT | O_EXCL],
  [/^(a|as|sa)\+?$/, O_CREAT | O_APPEND],
  [/^(ax|xa)\+?$/, O_CREAT | O_APPEND | O_EXCL],
];

/** Open a file for `act`, and nothing else: a pipe, which another guest may put in its place at any time, would block.
 * @template T @param {string} file @param {number} flags @param {(fd: number, found: fs.Stats) => T} act @returns {T} */
function withOpen(file, flags, act) {
  const fd = fs.openSync(file, flags | O_NONBLOCK);
  try {
    const found = fs.fstatSync(fd);
    if (found.isDirectory()) throw fault("EISDIR", "illegal operation on a directory");
    if (!found.isFile()) throw fault("EINVAL", "not a file");
    return act(fd, found);
  } finally {
    fs.closeSync(fd);
  }
}

/** @param {number} size */
function checkSize(size) {
  if (size > MAX_READ_BYTES) throw fault("EFBIG", `file too large to be read at once (${MAX_READ_BYTES / 1024 / 1024} MiB)`);
}

/** @param {string} code @param {string} words @param {string} [call] @param {string} [name] */
function fault(code, words, call, name) {
  const where = call ? `, ${call} '${name}'` : "";
  return Object.assign(new Error(`${code}: ${words}${where}`), { code, ...(call ? { syscall: call, path: name } : {}) });
}

/** @param {fs.Stats | fs.Dirent} found */
function kind(found) {
  return Object.entries(KINDS).find(([is]) => /** @type {any} */ (found)[is]())?.[1] ?? "other";
}

/** @param {fs.Stats} found */
function facts(found) {
  return { kind: kind(found), size: found.size, mode: found.mode, mtimeMs: found.mtimeMs };
}

/** @param {Files} files @param {string} folder @param {boolean} recursive @returns {any[]} in Node's order. Links are not followed. */
function list(files, folder, recursive) {
  const top = files.find(folder);
  const pending = [{ file: top.file, name: top.name, below: "" }];
  const found = [];
  let chars = 0;
  for (const { file, name, below } of pending) {
    const inside = [];
    const entries = fs.opendirSync(file);
    try {
      for (let each = entries.readSync(); each; each = entries.readSync()) {
        const path = below + each.name;
        chars += path.length + name.length;
        if (found.length + inside.length >= MAX_LISTED || chars > MAX_LISTED_CHARS) throw fault("E2BIG", "too many entries to be listed at once");
        inside.push({ name: each.name, path, kind: kind(each), parentPath: name });
      }
    } finally {
      entries.closeSync();
    }
    for (const each of inside.sort((one, other) => (one.name < other.name ? -1 : 1))) {
      found.push(each);
      if (!recursive || each.kind !== "directory") continue;
      pending.push({ file: `${file}/${each.name}`, name: `${name}/${each.name}`, below: `${each.path}/` });
    }
  }
  return found;
}

/** Take something away, and what it took from the quota; what was in a folder is seen at the next count.
 * @param {Files} files @param {string} name @param {(file: string) => void} act */
function removing(files, name, act) {
  const { file, counted } = files.toChange(name);
  const before = fs.lstatSync(file, { throwIfNoEntry: false });
  act(file);
  if (counted && before) files.quota.add(before.isFile() ? -before.size : 0, -1);
}

/** @type {Record<string, (files: Files, ...values: any[]) => any>} */
const OPERATIONS = {
  readdir: (files, name, recursive) => list(files, name, recursive),
  exists: (files, name) => {
    try {
      return fs.existsSync(files.find(name).file);
    } catch {
      return false;
    }
  },
  stat: (files, name) => facts(fs.statSync(files.find(name).file)),
  lstat: (files, name) => facts(fs.lstatSync(files.find(name).file)),
  mkdir: (files, name, recursive) => {
    const found = files.toChange(name);
    if (found.counted) files.quota.reserve(0, 1);
    fs.mkdirSync(found.file, { recursive });
  },
  rm: (files, name, recursive, force) => removing(files, name, (file) => fs.rmSync(file, { recursive, force })),
  rmdir: (files, name) => removing(files, name, fs.rmdirSync),
  unlink: (files, name) => removing(files, name, fs.unlinkSync),
  rename: (files, from, to) => {
    const source = files.toChange(from).file;
    removing(files, to, (file) => fs.renameSync(source, file)); // over what is there
    files.note(files.find(to));
  },
  copy: (files, from, to, mode) => files.write(to, files.read(from), mode & COPYFILE_EXCL ? "wx" : "w"),
  realpath: (files, name) => {
    const found = files.find(name);
    const real = fs.realpathSync.native(found.file);
    const folder = files.folders.find(({ root }) => real === fs.realpathSync.native(root) || real.startsWith(`${fs.realpathSync.native(root)}/`));
    if (!folder) throw fault("EACCES", "permission denied"); // a link that leads out
    return folder.point + real.slice(fs.realpathSync.native(folder.root).length);
  },
  chdir: (files, name) => {
    const found = files.find(name);
    if (!fs.statSync(found.file).isDirectory()) throw fault("ENOTDIR", "not a directory");
    files.workingDirectory = found.name;
  },
};
