// Saves and loads the state of an idle guest: QuickJS's memory, and what this process holds of it.
//
// Loaded when it is needed: zstd takes some milliseconds of a start.
import { continueClock } from "../../host/state/clock.mjs";
import { StateError } from "../../host/state/state_error.mjs";
import { StateReader, StateWriter } from "../../host/state/state_stream.mjs";

const DAMAGED = "its header is damaged";

/** @typedef {{realm: import("./realm.mjs").Realm, files: import("./files.mjs").Files, services: {timerCount: number},
 * isIdle: () => boolean}} Guest */
/** @typedef {{pins: Record<string, number>, memory_bytes: number, used_bytes: number, reserve: number, room: number,
 * working_directory: string, clock: number, timer_count?: number}} Header
 * pins: as `Realm.pins`; used_bytes: those that follow; reserve, room: as in `Engine`; clock: milliseconds since the session
 * began; timer_count: how many timers it has had */

/** Write the state to a descriptor. Refuses before anything is written.
 * @param {Guest} guest @param {number} fd @param {{is_plain?: boolean}} how is_plain: not compressed */
export function saveState({ realm, files, services, isIdle }, fd, { is_plain = false }) {
  if (!isIdle()) throw new StateError("a timer or a request is under way");
  const { engine } = realm;
  /** @type {Header} */
  const header = {
    pins: realm.pins(),
    memory_bytes: engine.size,
    used_bytes: engine.usedBytes(),
    reserve: engine.reserve,
    room: engine.room,
    working_directory: files.workingDirectory,
    clock: performance.now(),
    timer_count: services.timerCount,
  };
  const writer = new StateWriter(fd, is_plain);
  writer.begin(header);
  writer.put(new Uint8Array(engine.memory.buffer, 0, header.used_bytes));
  writer.end();
  return { bytes: writer.bytes };
}

/** Load a state into a guest that has run nothing yet. All that can be checked is checked before the memory is touched. Whatever
 * fails, the guest must end. @param {Guest} guest @param {number} fd @param {boolean} reseed the session goes on elsewhere, too */
export function loadState({ realm, files, services }, fd, reseed) {
  const { engine } = realm;
  const reader = new StateReader(fd);
  /** @type {Header} */
  const header = reader.begin();
  const { memory_bytes: size, used_bytes: used, working_directory: folder, timer_count: timers = 0 } = header;
  if (![size, used, header.reserve, header.room, timers].every(Number.isSafeInteger)) throw new StateError(DAMAGED);
  if (!(used >= 0 && used <= size) || typeof folder !== "string") throw new StateError(DAMAGED);
  for (const [name, address] of Object.entries(realm.pins()))
    if (header.pins?.[name] !== address) throw new StateError(`its ${name} lies elsewhere`);
  const before = engine.usedBytes();
  if (!engine.grow(size)) throw new StateError(`it needs ${Math.ceil(size / 2 ** 20)} MB of memory`);
  const end = Math.max(before, engine.usedBytes());
  const memory = new Uint8Array(engine.memory.buffer);
  reader.take(memory.subarray(0, used));
  reader.end();
  memory.fill(0, used, Math.max(used, end));
  engine.reserve = header.reserve;
  engine.room = header.room;
  try {
    files.call("chdir", [folder]);
  } catch {
    // It has been deleted: the cell finds itself where a fresh guest begins.
  }
  continueClock(header.clock);
  services.timerCount = timers;
  if (reseed) realm.reseed();
  return {};
}
