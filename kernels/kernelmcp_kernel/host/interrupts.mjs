// The interrupt pipe: 4 bytes (little endian), the number of the request that is to be interrupted.
//
// Two readers share it. While WebAssembly runs, CPython's signal check polls through the interrupt buffer; while the guest
// waits, an `interrupt` frame makes the event loop look. The first of the two to read the number consumes it.
import fs from "node:fs";

const POLL_MS = 10;
const SIGINT = 2;
const SIGUSR1 = 10; // "the event loop has not turned since the interrupt": see interrupts.on_stuck_signal
const SIGUSR2 = 12; // "what runs is of no request, and has run for too long": see interrupts.on_background_signal
const BACKGROUND = 0xffffffff; // the number that is sent for that
const STUCK_MS = 200;
const HOLD_MS = 100; // from asking to waiting takes microseconds; a coroutine may go on for long

export class Interrupts {
  /** @param {number} fd non-blocking @param {(request: number) => void} consumed @param {() => void} tick */
  constructor(fd, consumed, tick) {
    this.fd = fd;
    this.consumed = consumed;
    this.tick = tick;
    this.current = 0; // the request that runs; 0: none
    this.wanted = 0; // the newest request that an interrupt was sent for
    this.taken = 0; // the request that an interrupt was consumed for last
    this.polledAt = 0;
    this.heldUntil = 0; // while Python is about to wait
    this.stuckAt = Infinity; // when to say that an interrupt has not got through
    this.endBackground = false; // BACKGROUND was sent, and no request has come since
    this.bytes = Buffer.alloc(256);
    this.naps = new Int32Array(new SharedArrayBuffer(4));
  }

  /** Is there an interrupt for the running request? Consumes it. */
  take() {
    try {
      const count = fs.readSync(this.fd, this.bytes);
      if (count >= 4) this.wanted = this.bytes.readUInt32LE(count - 4);
    } catch {
      // EAGAIN: nothing was sent
    }
    if (this.wanted === BACKGROUND) {
      this.wanted = 0;
      this.endBackground = true;
    }
    if (this.current) this.endBackground = false;
    if (!this.current || this.wanted !== this.current) return false;
    this.wanted = 0;
    this.taken = this.current;
    this.consumed(this.current);
    return true;
  }

  /** Is what no request runs for to end? Consumes it. */
  takeBackground() {
    const asked = this.endBackground && !this.current;
    this.endBackground = false;
    return asked;
  }

  /** Python has swallowed the interrupt: it is to come again. */
  again() {
    if (this.current && this.taken === this.current) this.wanted = this.current;
  }

  /** Was an interrupt for the running request consumed already? */
  wasTaken() {
    return this.taken === this.current;
  }

  /** Python asks the host for something, and will wait in a moment: a signal in the C code between the two would be taken for
   * a failed conversion. Until it waits, or for HOLD_MS when it goes on, there is none; while it waits there is the frame. */
  hold() {
    const now = performance.now();
    if (now < this.heldUntil + 2 * POLL_MS) return; // who asks again and again leaves gaps in which there is a poll
    this.heldUntil = now + HOLD_MS;
    setImmediate(() => (this.heldUntil = 0));
  }

  /** For Pyodide's setInterruptBuffer: looks like a byte array to CPython's signal check. */
  buffer() {
    const poll = () => {
      const now = performance.now();
      if (now - this.polledAt < POLL_MS) return 0;
      this.polledAt = now;
      this.tick();
      if (now < this.heldUntil) return 0;
      if (this.take()) {
        this.stuckAt = now + STUCK_MS;
        setImmediate(() => (this.stuckAt = Infinity));
        return SIGINT;
      }
      if (this.takeBackground()) return SIGUSR2;
      if (now < this.stuckAt) return 0;
      this.stuckAt = now + STUCK_MS;
      return SIGUSR1;
    };
    return {
      get 0() {
        return poll();
      },
      set 0(_value) {}, // CPython clears the byte it saw; `take` has done that
    };
  }

  /** Block for at most `ms`; true when an interrupt ended it. @param {number} ms */
  nap(ms) {
    this.tick();
    if (this.take()) return true;
    Atomics.wait(this.naps, 0, 0, Math.min(ms, POLL_MS));
    return this.take();
  }
}
