// The clock of a session that continues in another process.

const MAX_CLOCK_MS = 1e12; // 30 years

/** A monotonic clock never goes back. @param {number} clock milliseconds since the session began, by `performance.now` */
export function continueClock(clock) {
  const ahead = clock - performance.now();
  if (!(ahead > 0 && ahead < MAX_CLOCK_MS)) return;
  const now = performance.now.bind(performance);
  performance.now = () => now() + ahead;
}
