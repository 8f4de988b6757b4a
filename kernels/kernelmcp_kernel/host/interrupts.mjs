// The interrupt pipe: 4 bytes (little endian), the number of the request that is to be interrupted.
//
// Two readers share it. While WebAssembly runs, CPython's signal check asks `check`; while the guest
// waits, an `interrupt` frame makes the event loop look. The first of the two to read the number consumes it.
import fs from "node:fs";
import process from "node:process";

const POLL_MS = 10;
const SIGINT = 2;
const SIGUSR1 = 10; // "the event loop has not turned since the interrupt": see interrupts.on_stuck_signal
const SIGUSR2 = 12; // "what holds the event loop is of no request, and has run for too long or is in the way": see interrupts.on_background_signal
const BACKGROUND = 0xffffffff; // the number that is sent for that
const STUCK_MS = 200;
const HELD_TURNS = 3; // an answer comes to who waits for it by callbacks of the event loop
const TURNS = 50; // of the evaluation loop, from one look for signals to the next
const MORE_TURNS = 1 / 4; // to the next look than to the one before
const CALLS_OF_C = 32; // to the signal check, for one look at the clock
const HOLD_MS = 100; // from asking to waiting takes microseconds; a coroutine may go on for long

/** @param {NodeJS.CpuUsage} since @returns {number} */
function spentMs(since) {
  const { user, system } = process.cpuUsage(since);
  return (user + system) / 1000;
}

export class Interrupts {
  /** @param {number} fd non-blocking @param {(request: number) => void} consumed @param {() => void} tick
   * @param {() => void} turned the event loop has turned after a signal */
  constructor(fd, consumed, tick, turned = () => undefined) {
    this.fd = fd;
    this.consumed = consumed;
    this.tick = tick;
    this.turned = turned;
    this.current = 0; // the request that runs; 0: none
    this.newest = 0; // the request that has begun last
    this.wanted = 0; // the newest request that an interrupt was sent for
    this.taken = 0; // the request that an interrupt was consumed for last
    this.polledAt = 0;
    /** @type {any} */
    this.heap = undefined; // Pyodide's module, which has the memory
    this.turns = 0; // where in it: CPython's counter of turns
    this.ahead = TURNS - 1; // turns to the evaluation loop's next look
    this.lookedAt = 0; // when it looked last
    this.calls = 0; // of C code to the signal check
    /** @type {NodeJS.CpuUsage | undefined} while Python is about to wait or to go on: since when */
    this.heldFrom = undefined;
    this.turnsToHold = 0;
    /** @type {NodeJS.CpuUsage | undefined} while a signal waits for the event loop to turn: since when */
    this.stuckFrom = undefined;
    this.endBackground = false; // BACKGROUND was sent, and no request has come since
    this.bytes = Buffer.alloc(256);
    this.naps = new Int32Array(new SharedArrayBuffer(4));
  }

  /** A request begins. @param {number} request */
  begin(request) {
    this.current = this.newest = request;
    this.endBackground = false;
  }

  /** A request has ended; the next one may have begun. @param {number} request */
  end(request) {
    if (this.current === request) this.current = 0;
  }

  /** Is it time to look again? For what is asked at every turn. */
  isDue(now = performance.now()) {
    if (now - this.polledAt < POLL_MS) return false;
    this.polledAt = now;
    this.tick();
    return true;
  }

  /** Is there an interrupt for the running request? Consumes it. */
  take() {
    if (!this.#isWanted()) return false;
    this.heard();
    return true;
  }

  /** The running request knows of its interrupt. Until then a signal comes again: at Python's recursion limit its handler
   * does not even begin. */
  heard() {
    this.wanted = 0;
    this.taken = this.current;
    this.consumed(this.current);
  }

  #isWanted() {
    try {
      const count = fs.readSync(this.fd, this.bytes);
      if (count >= 4) this.wanted = this.bytes.readUInt32LE(count - 4);
    } catch {
      // EAGAIN: nothing was sent
    }
    if (this.wanted === BACKGROUND) {
      this.wanted = 0;
      this.endBackground = true;
      // It is sent while no request runs: ours has been answered, and a task has kept the event loop from telling us.
      this.current = 0;
    }
    return this.current !== 0 && this.wanted === this.current;
  }

  /** Is what no request runs for to end? Consumes it. */
  takeBackground() {
    const asked = this.endBackground;
    this.endBackground = false;
    return asked;
  }

  /** Python has swallowed the interrupt: it is to come again; or not, because it has been raised meanwhile.
   * @param {boolean} isWanted */
  again(isWanted) {
    if (this.current && this.taken === this.current) this.wanted = isWanted ? this.current : 0;
  }

  /** Was an interrupt for the running request consumed already? */
  wasTaken() {
    return this.taken === this.current;
  }

  /** Python asks the host for something and will wait in a moment, or its answer is here and it will go on: a signal in the C
   * code between would be taken for a failed conversion, or be lost with the answer. Until the event loop has turned there is
   * none, but for HOLD_MS of the processor's time from one turn to the next at most; while Python waits there is the frame. */
  hold() {
    this.turnsToHold = HELD_TURNS;
    if (this.heldFrom) return;
    const turn = () => {
      this.heldFrom = this.turnsToHold ? process.cpuUsage() : undefined;
      if (!this.heldFrom) return;
      this.turnsToHold--;
      setImmediate(turn);
    };
    this.heldFrom = process.cpuUsage();
    setImmediate(turn);
  }

  #isHeld() {
    return this.heldFrom !== undefined && spentMs(this.heldFrom) < HOLD_MS;
  }

  /** Was an interrupt sent for a request that has not begun? What has the event loop is of no request then. */
  #isKeptFromBeginning() {
    return this.wanted > this.newest;
  }

  /** From now on the event loop has STUCK_MS of the processor's time to turn: on a busy machine, much more of the clock's. */
  #expectTurn() {
    this.stuckFrom = process.cpuUsage();
    setImmediate(() => {
      this.stuckFrom = undefined;
      this.turned();
    });
  }

  /** What CPython's signal check calls instead of Pyodide's function, which reads the buffer: the number of a signal, or 0.
   * The evaluation loop asks at every 50th turn, and has just set its counter then: it is moved on, so that C code that is
   * called next is told apart, and further where turns take long, as in numpy: there the next look would come after seconds.
   * C code asks as often as it likes (once a digit, to write a number), and has a look at the clock each CALLS_OF_C times
   * only. */
  check() {
    const isLoop = this.heap.HEAP32[this.turns] === TURNS;
    if (!isLoop && (this.calls = (this.calls + 1) % CALLS_OF_C)) return 0;
    const now = performance.now();
    if (isLoop) this.heap.HEAP32[this.turns] = this.#pace(now);
    return this.#signal(now);
  }

  /** Turns to the next look, so that it comes in about POLL_MS. They grow slowly: what comes then may take longer.
   * @param {number} now */
  #pace(now) {
    const wanted = (this.ahead * POLL_MS) / (now - this.lookedAt);
    this.lookedAt = now;
    this.ahead = Math.max(1, Math.min(TURNS - 1, this.ahead + MORE_TURNS, wanted));
    return Math.floor(this.ahead);
  }

  /** Code of the user's begins, which may take long at each turn. */
  lookSoon() {
    this.ahead = 1;
    this.heap.HEAP32[this.turns] = 1;
  }

  /** For Pyodide's setInterruptBuffer, which switches CPython's signal check on. @param {any} module Pyodide's */
  buffer(module) {
    this.heap = module;
    this.turns = module.__Py_emscripten_signal_clock >> 2;
    const signal = () => this.#signal();
    return {
      get 0() {
        return signal();
      },
    };
  }

  #signal(now = performance.now()) {
    if (!this.isDue(now)) return 0;
    if (this.#isHeld()) return 0;
    if (this.#isWanted()) {
      this.#expectTurn();
      return SIGINT;
    }
    // While the event loop turns, its frame cancels what is in the background: KeyboardInterrupt between two steps of a task
    // would be lost with the step, and the task would neither go on nor end.
    const background = this.endBackground || this.#isKeptFromBeginning();
    if (background && !this.stuckFrom) this.#expectTurn();
    if (!this.stuckFrom || spentMs(this.stuckFrom) < STUCK_MS) return 0;
    this.stuckFrom = process.cpuUsage();
    if (!background) return SIGUSR1;
    this.endBackground = false;
    return SIGUSR2;
  }

  /** Block for at most `ms`; true when an interrupt ended it, or the end of what no request runs for. @param {number} ms */
  nap(ms) {
    this.tick();
    if (this.take()) return true;
    Atomics.wait(this.naps, 0, 0, Math.min(ms, POLL_MS));
    return this.take() || (this.endBackground && this.current === 0);
  }
}
