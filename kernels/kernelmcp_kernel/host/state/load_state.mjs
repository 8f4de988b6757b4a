// Loads a session's state into a guest that has run nothing yet.
//
// All that can be checked is checked before the heap is touched. Whatever fails, the guest must end: half of a state may be in it.
import { describe } from "../errno.mjs";
import { compileLibraries, restoreLibraries } from "../libraries.mjs";
import { continueClock } from "./clock.mjs";
import { OpenFiles } from "./open_files.mjs";
import { PAGE } from "./page_operations.mjs";
import { References } from "./references.mjs";
import { StateError } from "./state_error.mjs";
import { StateReader } from "./state_stream.mjs";

/** @typedef {import("./session_state.mjs").SessionState} SessionState */
/** @typedef {import("./session_state.mjs").Header} Header */

const MAX_TABLE_GROWTH = 1 << 20; // entries
const DAMAGED = "its header is damaged";

/** @param {SessionState} guest @param {number} fd */
export async function loadState(guest, fd) {
  const reader = new StateReader(fd, guest.operations.block);
  /** @type {Header} */
  const header = reader.begin();
  check(guest, header);
  grow(guest.module, header.heap_bytes);
  await loadLibraries(guest, header.libraries);
  guest.finalizers.forget(); // from here on nothing of the old heap may be touched
  guest.revert();
  const contents = OpenFiles.room(header.files.files);
  for (const content of contents) reader.take(content);
  takePages(guest, reader, header.runs, new Uint8Array(guest.module.HEAPU8.length / PAGE));
  reader.end();
  if (header.previous) loadBase(guest, fd, header);
  guest.references.restore(header.references, header.interned);
  const { wasmTable } = guest.module;
  if (wasmTable.length < header.table) wasmTable.grow(header.table - wasmTable.length);
  const lost = guest.files.restore(header.files, contents);
  continueClock(header.clock);
  return { lost, gone: References.gone(header.references) };
}

/** Load the pages of the state that another one is the changes of. @param {SessionState} guest @param {number} fd
 * @param {Header} changes */
function loadBase(guest, fd, changes) {
  const reader = new StateReader(fd, guest.operations.block);
  /** @type {Header} */
  const header = reader.begin();
  if (header.id !== changes.previous) throw new StateError("it is based on another state");
  const { length } = guest.module.HEAPU8;
  checkShape(header, guest.module);
  if (header.heap_bytes > length) throw new StateError(DAMAGED);
  for (const content of OpenFiles.room(header.files.files)) reader.take(content);
  const isChanged = new Uint8Array(length / PAGE);
  for (const [first, count] of changes.runs) isChanged.fill(1, first, first + count);
  takePages(guest, reader, header.runs, isChanged);
  reader.end();
}

/** Make pages of the heap, which are the image's, what comes next. @param {SessionState} guest @param {StateReader} reader
 * @param {Header["runs"]} runs @param {Uint8Array} isOther 1 for each page that is not wanted */
function takePages({ operations, differences }, reader, runs, isOther) {
  const { heap } = differences;
  const unused = Buffer.alloc(PAGE);
  for (const run of runs)
    for (const { first, count, position } of differences.split(run)) {
      const end = first + count;
      for (let page = first, next = first; page < end; page = next) {
        next = page + 1;
        if (position !== undefined) {
          const at = reader.read((place) => operations.packedBytes(place));
          if (!isOther[page]) operations.unpack(page, at);
        } else if (isOther[page]) reader.take(unused);
        else {
          while (next < end && !isOther[next]) next++;
          reader.take(heap.subarray(page * PAGE, next * PAGE));
        }
      }
    }
}

/** @param {SessionState} guest @param {Header} header */
function check(guest, header) {
  const { image, references, module } = guest;
  if (header.build_id !== image.header.build_id || header.image_crc32 !== image.header.crc32)
    throw new StateError("it was saved with another boot image");
  checkShape(header, module);
  if (header.stack !== guest.stack) throw new StateError("its stack lies elsewhere");
  for (const [name, address] of Object.entries(guest.pins))
    if (header.pins[name] !== address) throw new StateError(`its ${name} lies elsewhere`);
  if (references.interned().some((name, place) => header.interned[place] !== name))
    throw new StateError("its interned names are others");
  (image.header.libraries?.list ?? []).forEach((own, place) => {
    const { path, memory, table, size } = header.libraries?.list[place] ?? {};
    if (own.path !== path || own.memory !== memory || own.table !== table || own.size !== size)
      throw new StateError("it has other shared objects");
  });
}

/** @param {Header} header @param {any} module */
function checkShape({ runs, heap_bytes, interned, references, libraries, table, files, pins }, module) {
  const lists = [runs, interned, references, files?.files, files?.removed, files?.descriptors];
  if (!lists.every(Array.isArray) || !pins || !Number.isSafeInteger(heap_bytes)) throw new StateError(DAMAGED);
  if (libraries && ![libraries.list, libraries.slots].every(Array.isArray)) throw new StateError(DAMAGED);
  const growth = Math.max(table, libraries?.length ?? 0) - module.wasmTable.length;
  if (!(growth <= MAX_TABLE_GROWTH)) throw new StateError(DAMAGED);
  let free = 0; // the first page that no run has
  for (const [first, count] of runs) {
    if (!Number.isInteger(first) || !Number.isInteger(count) || first < free || count < 1) throw new StateError(DAMAGED);
    free = first + count;
  }
  if (free * PAGE > heap_bytes) throw new StateError("a page of it is out of range");
}

/** @param {any} module @param {number} bytes */
function grow(module, bytes) {
  if (bytes <= module.HEAPU8.length) return;
  try {
    module.growMemory(bytes);
  } catch {
    // told by the size
  }
  if (bytes > module.HEAPU8.length) throw new StateError(`it needs ${Math.ceil(bytes / 2 ** 20)} MB of memory`);
}

/** Load the shared objects that this guest has not. Their data is written to the heap.
 * @param {SessionState} guest @param {Header["libraries"]} libraries */
async function loadLibraries(guest, libraries) {
  const { module, FS, image } = guest;
  const present = image.header.libraries?.list.length ?? 0;
  if (!libraries || libraries.list.length === present) return;
  try {
    const missing = libraries.list.slice(present);
    const compiled = await Promise.all(compileLibraries(missing, (path) => FS.readFile(path)));
    restoreLibraries(module, libraries, compiled, present);
  } catch (error) {
    throw new StateError(`its shared objects cannot be loaded: ${describe(error)}`);
  }
  guest.dropPrepared();
}
