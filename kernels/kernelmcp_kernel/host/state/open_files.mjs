// What Emscripten's file systems hold in JavaScript: files in memory, open files, the working directory.
import fs from "node:fs";
import { describe } from "../errno.mjs";
import { StateError } from "./state_error.mjs";

const NOT_SAVED = ["/dev", "/proc", "/lib/python314.zip"];
const STANDARD = 2; // descriptors up to this one belong to the process
const MAX_DESCRIPTOR = 4096;
const MAX_MEMORY_BYTES = 512 << 20; // of files in memory
const CREATING = 0o100 | 0o200 | 0o1000; // O_CREAT, O_EXCL, O_TRUNC

/** @typedef {{path: string, kind: "file" | "folder" | "link", mode: number, mtime: number, size: number, link?: string}} MemoryFile */
/** @typedef {{fd: number, path: string, flags: number, position: number, like: number, ino: number}} Descriptor like: the
 * first descriptor that shares its position, itself if there is none */
/** @typedef {{files: MemoryFile[], removed: string[], descriptors: Descriptor[], cwd: string, next_inode: number}} Description */

/** @param {MemoryFile} file */
function stamp({ kind, mode, mtime, size, link }) {
  return [kind, mode, mtime, size, link ?? ""].join(" ");
}

export class OpenFiles {
  /** @param {any} FS Emscripten's, as it is at the guest's start */
  constructor(FS) {
    this.FS = FS;
    this.atStart = new Map(this.#memoryFiles().map(({ file }) => [file.path, stamp(file)]));
  }

  /** Describe what differs from the guest's start. Refuses what could not be opened again.
   * @returns {{description: Description, contents: Uint8Array[]}} contents: of the files, in their order */
  describe() {
    const { FS } = this;
    const all = this.#memoryFiles();
    const present = new Set(all.map(({ file }) => file.path));
    const changed = all.filter(({ file }) => this.atStart.get(file.path) !== stamp(file));
    if (changed.reduce((sum, { file }) => sum + file.size, 0) > MAX_MEMORY_BYTES)
      throw new StateError(`files in memory take more than ${MAX_MEMORY_BYTES >> 20} MB: move them to /workspace`);
    const description = {
      files: changed.map(({ file }) => file),
      removed: [...this.atStart.keys()].filter((path) => !present.has(path)),
      descriptors: this.#descriptors(),
      cwd: FS.cwd(),
      next_inode: FS.nextInode,
    };
    const contents = changed.map(({ file, node }) => {
      if (!file.size) return new Uint8Array();
      return new Uint8Array(node.contents.buffer, node.contents.byteOffset, file.size); // it may be an Int8Array
    });
    return { description, contents };
  }

  /** Space for the contents of files. @param {MemoryFile[]} files @returns {Buffer[]} */
  static room(files) {
    let left = MAX_MEMORY_BYTES;
    return files.map(({ size }) => {
      if (!Number.isInteger(size) || size < 0 || (left -= size) < 0) throw new StateError("its files are damaged");
      return Buffer.alloc(size);
    });
  }

  /** @param {Description} description @param {Uint8Array[]} contents @returns {string[]} what could not be opened
   * or put back, and what it was */
  restore({ files, removed, descriptors, cwd, next_inode }, contents) {
    const { FS } = this;
    /** @type {string[]} */
    const lost = [];
    /** @param {string} what @param {() => void} restore */
    const attempt = (what, restore) => {
      try {
        restore();
      } catch (error) {
        lost.push(`${what}: ${describe(error)}`);
      }
    };
    FS.ignorePermissions = true; // modes may have been changed since: a folder is read-only before its files are in it
    for (const path of [...removed].reverse()) attempt(`the file ${path} in memory`, () => this.#remove(path));
    files.forEach((file, place) => attempt(`the file ${file.path} in memory`, () => this.#restoreFile(file, contents[place])));
    for (const stream of FS.streams) if (stream?.fd > STANDARD) attempt(stream.path, () => FS.close(stream));
    for (const each of descriptors) attempt(`the open file ${each.path} (descriptor ${each.fd})`, () => this.#open(each));
    if (Number.isSafeInteger(next_inode)) FS.nextInode = Math.max(FS.nextInode, next_inode);
    attempt(`the working directory ${cwd}`, () => FS.chdir(cwd));
    FS.ignorePermissions = false;
    return lost;
  }

  /** @returns {{file: MemoryFile, node: any}[]} folders before what is in them */
  #memoryFiles() {
    const { FS } = this;
    /** @type {{file: MemoryFile, node: any}[]} */
    const found = [];
    /** @param {any} node @param {string} path */
    const walk = (node, path) => {
      if (NOT_SAVED.includes(path) || node.mount.type !== FS.filesystems.MEMFS) return;
      const { mode } = node;
      if (FS.isLink(mode)) found.push({ file: { path, kind: "link", mode, mtime: 0, size: 0, link: node.link }, node });
      if (FS.isFile(mode)) {
        const [mtime, size] = [Number(node.mtime ?? 0), node.usedBytes ?? 0];
        found.push({ file: { path, kind: "file", mode, mtime, size }, node });
      }
      if (!FS.isDir(mode)) return;
      found.push({ file: { path, kind: "folder", mode, mtime: 0, size: 0 }, node });
      for (const [name, child] of Object.entries(node.contents)) {
        const below = /** @type {any} */ (child);
        walk(FS.isMountpoint(below) ? below.mounted.root : below, `${path === "/" ? "" : path}/${name}`);
      }
    };
    walk(FS.root, "/");
    return found;
  }

  /** @returns {Descriptor[]} */
  #descriptors() {
    const { MEMFS, NODEFS } = this.FS.filesystems;
    /** @type {Map<any, number>} the first descriptor of each position */
    const positions = new Map();
    /** @type {Descriptor[]} */
    const found = [];
    for (const stream of this.FS.streams) {
      if (!stream || stream.fd <= STANDARD) continue;
      if (stream.stream_ops === NODEFS.stream_ops && stream.nfd === undefined) continue; // Emscripten keeps refused ones
      const { fd, flags, position, node } = stream;
      if (![MEMFS, NODEFS].includes(node?.mount?.type)) throw new StateError(`descriptor ${fd} is a pipe, a socket or a device`);
      const path = this.FS.getPath(node);
      if (this.#nodeAt(path) !== node || !this.#isSame(stream)) throw new StateError(`${path} is open, and was deleted or replaced`);
      if (!positions.has(stream.shared)) positions.set(stream.shared, fd);
      found.push({ fd, path, flags, position, like: positions.get(stream.shared) ?? fd, ino: node.id });
    }
    return found;
  }

  /** @param {string} path */
  #nodeAt(path) {
    try {
      return this.FS.lookupPath(path).node;
    } catch {
      return undefined;
    }
  }

  /** On the host, others replace files: the server, the shell. @param {any} stream */
  #isSame({ nfd, node }) {
    if (nfd === undefined) return true;
    const [open, there] = [fs.fstatSync(nfd), fs.lstatSync(this.FS.filesystems.NODEFS.realPath(node), { throwIfNoEntry: false })];
    return open.dev === there?.dev && open.ino === there.ino;
  }

  /** @param {string} path */
  #remove(path) {
    if (this.FS.isDir(this.FS.lookupPath(path).node.mode)) this.FS.rmdir(path);
    else this.FS.unlink(path);
  }

  /** @param {MemoryFile} file @param {Uint8Array} content */
  #restoreFile({ path, kind, mode, mtime, link }, content) {
    const { FS } = this;
    if (kind === "link") {
      if (FS.analyzePath(path, true).exists) FS.unlink(path);
      FS.symlink(link, path);
      return;
    }
    if (kind === "folder") FS.mkdirTree(path);
    else FS.writeFile(path, content);
    FS.chmod(path, mode);
    if (kind === "file") FS.utime(path, mtime, mtime);
  }

  /** @param {Descriptor} descriptor */
  #open({ fd, path, flags, position, like, ino }) {
    const { FS } = this;
    if (!Number.isInteger(fd) || fd <= STANDARD || fd > MAX_DESCRIPTOR) throw new Error("there is no such descriptor");
    const first = like === fd ? undefined : FS.streams[like];
    if (first) {
      FS.dupStream(first, fd);
      return;
    }
    const stream = FS.open(path, flags & ~CREATING);
    if (stream.fd !== fd) {
      FS.streams[stream.fd] = null;
      stream.fd = fd;
      FS.streams[fd] = stream;
    }
    stream.position = position;
    // SQLite looks whether its file is still the same; to Emscripten the number is a count of lookups.
    stream.node.id = ino;
  }
}
