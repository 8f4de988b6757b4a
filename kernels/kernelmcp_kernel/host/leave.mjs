// How a confined program that makes one thing ends.
import fs from "node:fs";
import process from "node:process";

/** End at once; our parent reads the status from descriptor 2 (runtime/node.py). Node's own end waits for V8's threads, and
 * one of them may wait for a collection that cannot come any more, for ever (nodejs/node#54918).
 * @param {number} status @param {string} [said] */
export function leave(status, said = "") {
  if (!process.permission) process.exit(status); // not confined: whoever started us looks at the status alone
  fs.writeSync(2, `${said}\0${status}`);
  try {
    process.kill(process.pid, "SIGKILL");
  } catch {
    process.exit(status);
  }
}
