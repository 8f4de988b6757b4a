// The Python frames of code that waits, which the rest of Python can reach: the garbage collector, sys.monitoring and
// sys._current_frames() follow the frames of all threads, and a blocked task is one to CPython; `f_back` follows them, too.
//
// Where C code called the interpreter, CPython puts an entry frame between the frames, on the C stack. But while code waits,
// Pyodide gives its part of the C stack to others, and keeps a copy: whoever followed an entry frame then would read what is no
// frame. Nobody needs one, so while code waits its frames are linked without them.

// Offsets in CPython's structures (its own table of them, for debuggers, is at _PyRuntime.debug_offsets).
const CURRENT_FRAME = 52; // of PyThreadState
const PREVIOUS = 4; // of _PyInterpreterFrame

/** @typedef {{threadState: number, stackState: {start: number, stop: number}}} Suspended Pyodide's, of code that waits */

/** Link the frames around those on the stack. @param {Uint32Array} heap @param {Suspended} suspended
 * @returns {[number, number][]} what was changed: the places in the heap, and what they had */
export function unlink(heap, { threadState, stackState: { start, stop } }) {
  /** @type {[number, number][]} */
  const changed = [];
  let place = (threadState + CURRENT_FRAME) >>> 2;
  for (;;) {
    const first = heap[place];
    let frame = first;
    while (frame >= start && frame < stop) frame = heap[(frame + PREVIOUS) >>> 2];
    if (frame !== first) {
      changed.push([place, first]);
      heap[place] = frame;
    }
    if (!frame) return changed;
    place = (frame + PREVIOUS) >>> 2;
  }
}

/** Have Pyodide do so whenever code begins to wait. @param {any} env what its main module imports
 * @param {{memory?: WebAssembly.Memory}} main the module, once it is there */
export function unlinkSuspended(env, main) {
  const { saveState, restoreState } = env;
  /** @type {WeakMap<Suspended, [number, number][]>} */
  const changes = new WeakMap();
  const heap = () => new Uint32Array(/** @type {WebAssembly.Memory} */ (main.memory).buffer);
  const save = () => {
    const state = saveState();
    if (state?.stackState) changes.set(state, unlink(heap(), state)); // else the code cannot wait
    return state;
  };
  const restore = (/** @type {Suspended} */ state) => {
    const view = heap();
    for (const [place, frame] of changes.get(state) ?? []) view[place] = frame;
    restoreState(state);
  };
  env.saveState = Object.assign(save, { sig: saveState.sig });
  env.restoreState = Object.assign(restore, { sig: restoreState.sig });
}
