// Makes the build of the base image reproducible: whatever would differ between two builds, and be kept in the heap, gets a fixed value.
// Only build_image.mjs imports it; a guest has real times, and what draws random numbers is seeded when it starts (lifecycle.py).
import crypto from "node:crypto";
import fs from "node:fs";
import process from "node:process";

const BEGIN_MS = Date.UTC(2026, 0, 1);
const TICK_MS = 0.01; // each look at the clock takes as long
const EPOCH = new Date(0);
const DIRECTORY_BYTES = 4096;
const PERMISSIONS = 0o777;

let elapsed = 0;
const tick = () => (elapsed += TICK_MS);

let state = 1;

/** A linear congruential generator. */
function random() {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
}

/** @template {NodeJS.ArrayBufferView} View @param {View} view @returns {View} */
function fill(view) {
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  for (let at = 0; at < bytes.length; at++) bytes[at] = random() * 256;
  return view;
}

/** What of a file's attributes is its own, and not its file system's. @param {fs.Stats} found @returns {fs.Stats} */
function plain(found) {
  const size = found.isDirectory() ? DIRECTORY_BYTES : found.size;
  const times = { atimeMs: 0, mtimeMs: 0, ctimeMs: 0, atime: EPOCH, mtime: EPOCH, ctime: EPOCH };
  const mode = (found.mode & ~PERMISSIONS) | (found.isDirectory() ? 0o755 : 0o644);
  return Object.assign(found, { ...times, mode, dev: 1, ino: 1, nlink: 1, uid: 0, gid: 0, size, blocks: Math.ceil(size / 512) });
}

/** From now on, in the whole process. @param {string} program the name that Python has for it */
export function makeReproducible(program) {
  process.argv[1] = program;
  process.env.TZ = "UTC";
  Date.now = () => Math.floor(BEGIN_MS + tick());
  performance.now = tick;
  Math.random = random;
  /** @type {any} */ (crypto).randomFillSync = fill;
  /** @type {any} */ (globalThis.crypto).getRandomValues = fill;
  const { lstatSync, fstatSync } = /** @type {any} */ (fs);
  /** @type {any} */ (fs).lstatSync = (/** @type {any[]} */ ...given) => plain(lstatSync(...given));
  /** @type {any} */ (fs).fstatSync = (/** @type {any[]} */ ...given) => plain(fstatSync(...given));
}
