// What the guest's file systems do beyond Emscripten's NODEFS: a quota, read-only volumes, and a note of what was written.
//
// All of it is for honest programs, so that they get an errno: guest JavaScript can take it out. The boundary is outside:
// storage.py counts again, and Landlock and Node's permission model know which paths may be written.
import fs from "node:fs";
import path from "node:path";
import { ENOSPC, EROFS } from "./errno.mjs";
import { Quota, sizeOf } from "./quota.mjs";

const O_ACCMODE = 3;
const EXECUTABLE = 0o111;
const BLOCK = 4096; // bytes, as statvfs counts
const RECHECK_MS = 1000;
const MAX_CHANGED = 1000; // paths reported for one cell

/** @typedef {{root: string, counted?: boolean, readOnly?: boolean, noted?: string}} Options how a directory is mounted:
 * `counted` against the quota; a file that changes in it is noted by its path with `noted` before it */

export class Storage {
  /** @param {any} pyodide @param {{max_bytes: number, max_files: number}} limits */
  constructor(pyodide, limits) {
    this.FS = pyodide.FS;
    this.nodefs = pyodide.FS.filesystems.NODEFS;
    /** @type {string[]} */
    this.counted = [];
    this.quota = new Quota(limits, this.counted, () => new this.FS.ErrnoError(ENOSPC));
    /** @type {Set<any>} nodes, because a file may be renamed before its path is reported */
    this.changed = new Set();
    this.requests = 0;
    this.#patchLookup();
    this.#patchWrites();
    this.#patchNames();
  }

  /** Show a host directory to the guest. @param {string} point @param {Options} options */
  mount(point, options) {
    if (options.counted) this.counted.push(options.root);
    this.FS.mkdirTree(point);
    this.FS.mount(this.nodefs, options, point);
  }

  /** The files that were made or changed since the last call: paths in the workspace, or /volumes/NAME/PATH. */
  takeChanged() {
    if (!this.changed.size) return [];
    const changed = [...this.changed].map(
      (node) => node.mount.opts.noted + path.relative(node.mount.opts.root, this.nodefs.realPath(node)),
    );
    this.changed.clear();
    return changed;
  }

  /** A request begins: what was found before may have been deleted. */
  begin() {
    this.lookAgain();
    this.quota.begin();
  }

  /** Others have worked for a request: the same holds for names. */
  lookAgain() {
    this.requests += 1;
  }

  /** Emscripten keeps what it has once found, but others delete files, too: each name of a session or a volume is looked at
   * again, once in a request, once a second and once after each call of the host. */
  #patchLookup() {
    const { FS } = this;
    const { lookupNode } = FS;
    FS.lookupNode = (/** @type {any} */ parent, /** @type {string} */ name) => {
      const node = lookupNode(parent, name);
      if (node.mount !== parent.mount || !this.#isShared(node)) return node;
      const now = this.requests + Math.floor(performance.now() / RECHECK_MS); // it only grows
      if (node.seenAt === now) return node;
      node.seenAt = now;
      const file = this.nodefs.realPath(node);
      const found = this.nodefs.tryFSOperation(() => fs.lstatSync(file, { throwIfNoEntry: false }));
      if (found?.isDirectory() === FS.isDir(node.mode) && found?.isFile() === FS.isFile(node.mode)) return node;
      FS.destroyNode(node);
      return lookupNode(parent, name);
    };
  }

  #patchWrites() {
    const { stream_ops: stream, node_ops: node } = this.nodefs;
    const { open, write, setattr } = stream;
    stream.open = (/** @type {any} */ opened) => {
      if (opened.flags & O_ACCMODE) this.#mayWrite(opened.node);
      open(opened);
    };
    stream.write = (/** @type {any} */ to, /** @type {any} */ buffer, /** @type {any[]} */ ...[offset, length, at]) => {
      if (!length || !this.#isCounted(to.node)) return write(to, buffer, offset, length, at);
      // Asking the system for each small write would cost more than the write.
      to.sizeSeen ??= fs.fstatSync(to.nfd).size;
      return this.#changing(to.node, at + length - to.sizeSeen, () => {
        const count = write(to, buffer, offset, length, at);
        to.sizeSeen = Math.max(to.sizeSeen, at + count);
        return count;
      });
    };
    stream.setattr = (/** @type {any} */ to, /** @type {any} */ attributes) => {
      // The permission model has switched off the calls that change the mode or times of an open file.
      if (attributes.size === undefined) return node.setattr(to.node, attributes);
      to.sizeSeen = undefined;
      this.#resizing(to.node, attributes, () => fs.fstatSync(to.nfd).size, () => setattr(to, attributes));
    };
    const setNode = node.setattr;
    node.setattr = (/** @type {any} */ to, /** @type {any} */ attributes) =>
      this.#resizing(to, attributes, () => sizeOf(this.nodefs.realPath(to)), () => setNode(to, attributes));
  }

  #patchNames() {
    const ops = this.nodefs.node_ops;
    ops.statfs = (/** @type {string} */ root) => this.#room(root);
    const { mknod, unlink, rmdir, symlink } = ops;
    ops.mknod = (/** @type {any} */ parent, /** @type {any[]} */ ...[name, mode, dev]) => {
      this.#mayWrite(parent);
      if (this.#isCounted(parent)) this.quota.check(0, 1);
      // Emscripten makes every file executable and then changes the mode, which a guest may not: never is one.
      const made = mknod(parent, name, this.FS.isFile(mode) ? mode & ~EXECUTABLE : mode, dev);
      if (this.#isCounted(parent)) this.quota.add(0, 1);
      if (this.FS.isFile(mode)) this.#note(made);
      return made;
    };
    const removing = (/** @type {any} */ parent, /** @type {string} */ name, /** @type {() => void} */ remove) => {
      this.#mayWrite(parent);
      const size = this.#isCounted(parent) ? sizeOf(path.join(this.nodefs.realPath(parent), name)) : 0;
      remove();
      if (this.#isCounted(parent)) this.quota.add(-size, -1);
    };
    ops.unlink = (/** @type {any} */ parent, /** @type {string} */ name) =>
      removing(parent, name, () => unlink(parent, name));
    ops.rmdir = (/** @type {any} */ parent, /** @type {string} */ name) =>
      removing(parent, name, () => rmdir(parent, name));
    ops.symlink = (/** @type {any} */ parent, /** @type {string} */ name, /** @type {string} */ target) => {
      this.#mayWrite(parent);
      symlink(parent, name, target);
    };
    ops.rename = (/** @type {any} */ node, /** @type {any} */ folder, /** @type {string} */ name) => {
      this.#mayWrite(node);
      this.#mayWrite(folder);
      const to = path.join(this.nodefs.realPath(folder), name);
      const replaced = this.#found(folder, name);
      const size = replaced && this.#isCounted(folder) ? sizeOf(to) : -1;
      // Emscripten's own would first delete what the guest has at the host's path, and keep the node that is replaced.
      this.nodefs.tryFSOperation(() => fs.renameSync(this.nodefs.realPath(node), to));
      if (replaced) this.FS.destroyNode(replaced);
      node.name = name;
      if (size >= 0) this.quota.add(-size, -1);
      this.#note(node);
    };
  }

  /** @param {any} folder @param {string} name */
  #found(folder, name) {
    try {
      return this.FS.lookupNode(folder, name);
    } catch {
      return undefined;
    }
  }

  /** @param {any} node @param {any} attributes @param {() => number} size @param {() => void} change */
  #resizing(node, attributes, size, change) {
    this.#mayWrite(node);
    if (attributes.size === undefined) return change();
    const growth = this.#isCounted(node) ? attributes.size - size() : 0;
    this.#changing(node, growth, change);
    if (growth < 0) this.quota.add(growth, 0);
  }

  /** @template T @param {any} node @param {number} growth @param {() => T} change */
  #changing(node, growth, change) {
    const isCounted = growth > 0 && this.#isCounted(node);
    if (isCounted) this.quota.check(growth, 0);
    const result = change();
    if (isCounted) this.quota.add(growth, 0);
    this.#note(node);
    return result;
  }

  /** @param {any} node */
  #mayWrite(node) {
    if (node.mount.opts.readOnly) throw new this.FS.ErrnoError(EROFS);
  }

  /** @param {any} node @returns {boolean} */
  #isCounted(node) {
    return !!node.mount.opts.counted;
  }

  /** Whether others may change it while the guest runs. @param {any} node @returns {boolean} */
  #isShared(node) {
    return this.#isCounted(node) || node.mount.opts.noted !== undefined;
  }

  /** What os.statvfs says: the quota, where there is one. The host's disk is no business of the guest's.
   * @param {string} root of a mount */
  #room(root) {
    if (!this.counted.includes(root)) return {}; // Emscripten's own numbers
    const { bytes, files } = this.quota.left();
    const { max_bytes, max_files } = this.quota.limits;
    const free = Math.floor(bytes / BLOCK);
    const size = { bsize: BLOCK, frsize: BLOCK, blocks: Math.floor(max_bytes / BLOCK) };
    return { ...size, bfree: free, bavail: free, files: max_files, ffree: files };
  }

  /** @param {any} node */
  #note(node) {
    if (node.mount.opts.noted !== undefined && this.changed.size < MAX_CHANGED) this.changed.add(node);
  }
}
