// Timers, whose clock is the host's.
(host, world) => {
  "use strict";
  const { define } = world;

  const timers = new Map();
  const start = (callback, delay, values, again) => {
    if (typeof callback !== "function") throw new TypeError("a timer needs a function");
    const number = host.startTimer(Math.max(again ? 1 : 0, Number(delay) || 0), again);
    timers.set(number, { callback, values, again });
    return number;
  };
  const stop = (number) => {
    if (timers.delete(number)) host.stopTimer(number);
  };
  define("setTimeout", (callback, delay, ...values) => start(callback, delay, values, false));
  define("setInterval", (callback, delay, ...values) => start(callback, delay, values, true));
  define("setImmediate", (callback, ...values) => start(callback, 0, values, false));
  for (const name of ["clearTimeout", "clearInterval", "clearImmediate"]) define(name, stop);
  define("queueMicrotask", (callback) => void Promise.resolve().then(callback));
  define("performance", { now: () => host.now(), timeOrigin: Date.now() - host.now() });
  world.timers = timers;
};
