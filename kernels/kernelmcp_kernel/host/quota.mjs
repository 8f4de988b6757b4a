// What a session's files may take, counted beside the guest for honest programs: they get ENOSPC instead of an end.
import fs from "node:fs";
import path from "node:path";

const RECOUNT_MS = 1000; // the server writes files, too
const RECOUNT_SHARE = 20; // a count that takes long is made so much more seldom

export class Quota {
  /** @param {{max_bytes: number, max_files: number}} limits @param {string[]} folders on the host
   * @param {() => Error} refusal what is thrown where there is no room */
  constructor(limits, folders, refusal) {
    this.limits = limits;
    this.folders = folders;
    this.refusal = refusal;
    this.mayRecount = true;
    this.bytes = 0;
    this.files = 0;
    this.countedAt = -Infinity;
    this.countMs = 0;
  }

  /** A request begins: what was found before may have been deleted. */
  begin() {
    this.mayRecount = true;
  }

  /** Take room, or throw. @param {number} bytes @param {number} files */
  reserve(bytes, files) {
    this.check(bytes, files);
    this.add(bytes, files);
  }

  /** Throw if there is no room. @param {number} bytes @param {number} files */
  check(bytes, files) {
    this.#count(RECOUNT_MS);
    if (this.#fits(bytes, files)) return;
    if (this.mayRecount) this.countedAt = -Infinity; // once in a request, whatever it costs
    this.mayRecount = false;
    this.#count(0); // what was deleted behind our back
    if (!this.#fits(bytes, files)) throw this.refusal();
  }

  /** Room was taken, or given back. @param {number} bytes @param {number} files */
  add(bytes, files) {
    this.bytes = Math.max(0, this.bytes + bytes);
    this.files = Math.max(0, this.files + files);
  }

  /** The room that is left. */
  left() {
    this.#count(RECOUNT_MS);
    return {
      bytes: Math.max(0, this.limits.max_bytes - this.bytes),
      files: Math.max(0, this.limits.max_files - this.files),
    };
  }

  /** @param {number} bytes @param {number} files */
  #fits(bytes, files) {
    const { max_bytes, max_files } = this.limits;
    return (bytes <= 0 || this.bytes + bytes <= max_bytes) && (files <= 0 || this.files + files <= max_files);
  }

  /** Look what there is, when the last look is old enough. @param {number} age in ms */
  #count(age) {
    const now = performance.now();
    if (now - this.countedAt < Math.max(age, RECOUNT_SHARE * this.countMs)) return;
    this.bytes = this.files = 0;
    const pending = [...this.folders];
    for (let folder = pending.pop(); folder !== undefined; folder = pending.pop()) {
      try {
        for (const entry of fs.readdirSync(folder, { withFileTypes: true })) {
          const file = path.join(folder, entry.name);
          this.files += 1;
          if (entry.isDirectory()) pending.push(file);
          else this.bytes += sizeOf(file);
        }
      } catch {
        // it went away while we looked
      }
    }
    this.countedAt = performance.now();
    this.countMs = this.countedAt - now;
  }
}

/** @param {string} file */
export function sizeOf(file) {
  const found = fs.lstatSync(file, { throwIfNoEntry: false });
  return found?.isFile() ? found.size : 0;
}
