// Saves a session's state.
import { describe } from "../errno.mjs";
import { pagesIn } from "./differences.mjs";
import { MAX_PACKED_BYTES, PAGE } from "./page_operations.mjs";
import { References } from "./references.mjs";
import { StateError } from "./state_error.mjs";
import { StateWriter } from "./state_stream.mjs";

/** Write the state of an idle guest to a descriptor. Refuses before anything is written.
 * @param {import("./session_state.mjs").SessionState} guest @param {number} fd
 * @param {{is_plain?: boolean, is_base?: boolean, since?: string | null}} how is_plain: not compressed; is_base: others may be
 * only what has changed since; since: this is only that, since the state with this id */
export function saveState(guest, fd, { is_plain = false, is_base = false, since = null }) {
  const { module, image, references, files } = guest;
  if (guest.stackPointer() !== guest.stack) throw new StateError("code is running");
  const held = references.describe();
  const libraries = describeLibraries(guest);
  const { description, contents } = files.describe();
  const runs = since === null ? guest.differences.find() : guest.changes(since);
  /** @type {import("./session_state.mjs").Header} */
  const header = {
    id: is_base ? guest.begin() : null,
    previous: since,
    build_id: image.header.build_id,
    image_crc32: image.header.crc32,
    heap_bytes: module.HEAPU8.length,
    runs,
    stack: guest.stack,
    pins: guest.pins,
    interned: references.interned(),
    references: held,
    libraries,
    table: module.wasmTable.length,
    files: description,
    clock: performance.now(),
  };
  const writer = new StateWriter(fd, is_plain, guest.operations.block);
  writer.begin(header);
  for (const content of contents) writer.put(content);
  for (const run of runs) putPages(guest, writer, run);
  writer.end();
  return { id: header.id, bytes: writer.bytes, pages: pagesIn(runs), gone: [...References.gone(held), ...references.newGlobals()] };
}

/** @param {import("./session_state.mjs").SessionState} guest @param {StateWriter} writer @param {import("./differences.mjs").Run} run */
function putPages({ operations, differences }, writer, run) {
  const { image } = operations;
  const { heap } = differences;
  const most = image.length / PAGE;
  for (const { first, count, position } of differences.split(run)) {
    if (position === undefined) writer.put(heap.subarray(first * PAGE, (first + count) * PAGE));
    else
      for (let page = first; page < first + count; page++) {
        const place = (page - first) % most;
        if (place === 0) differences.readImage(page, Math.min(most, first + count - page), image);
        writer.write(MAX_PACKED_BYTES, (at) => operations.pack(page, place * PAGE, at));
      }
  }
}

/** @param {import("./session_state.mjs").SessionState} guest */
function describeLibraries({ recorder }) {
  try {
    return recorder.describe();
  } catch (error) {
    throw new StateError(describe(error));
  }
}
