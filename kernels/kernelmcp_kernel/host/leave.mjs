// How every program of ours in Node ends.
import fs from "node:fs";
import process from "node:process";

/** End at once; our parent reads the status from descriptor 2 (runtime/told_status.py). Node's own end waits for V8's threads,
 * and one of them may wait for a collection that cannot come any more, for ever (nodejs/node#54918).
 * @param {number} status @param {string} [said] @returns {never} */
export function leave(status, said = "") {
  try {
    fs.writeSync(2, `${said}\0${status}`);
    process.kill(process.pid, "SIGKILL");
  } catch {
    // Nobody reads what we say, or a signal is refused.
  }
  process.exit(status);
}
