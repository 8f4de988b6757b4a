// What the host calls.
(host, world) => {
  "use strict";
  const { define, forgetInterrupted, giveUp, inspect, moduleName, modules, timers } = world;

  const MAX_CHARS = 100_000;
  const { random } = Math;
  let configured = {}; // environment variables
  const start = (value) => String(value).slice(0, MAX_CHARS);
  const isError = (value) => {
    try {
      return value instanceof Error;
    } catch {
      return false; // a proxy's own
    }
  };
  const fault = (error) => {
    const { name, message, stack } = isError(error) ? error : { name: "Error", message: `thrown: ${inspect(error)}`, stack: "" };
    const cause = isError(error) && Object.hasOwn(error, "cause") ? `\n[cause]: ${inspect(error.cause)}` : "";
    return JSON.stringify({ name: start(name), message: start(message), stack: start(`${stack}${cause}`) });
  };
  const { Promise } = globalThis;
  const { then } = Promise.prototype;
  const { apply } = Reflect;
  const uncaught = (error) => host.uncaught(fault(error));
  const watched = (value) => {
    try {
      if (value instanceof Promise) apply(then, value, [undefined, uncaught]);
    } catch {
      // It only looks like one.
    }
    return value;
  };
  const watchedFunction = (called) =>
    function (...values) {
      return watched(apply(called, this, values));
    };
  define("watched$", watched); // for cells.mjs, as the next one
  define("watchedFunction$", watchedFunction);
  return {
    inspect: (value) => inspect(value),
    // What a program asks for, and not a person: a text is whole.
    whole: (value) => (typeof value === "string" ? JSON.stringify(value) : inspect(value)),
    fault,
    moduleName,
    names: (name) => Object.keys(modules[name.replace(/^node:/, "")] ?? {}).filter((one) => /^[A-Za-z_$][\w$]*$/.test(one)).join(" "),
    fire: (number) => {
      const timer = timers.get(number);
      if (!timer) return;
      if (!timer.again) timers.delete(number);
      watched(timer.callback(...timer.values));
    },
    begin: forgetInterrupted,
    giveUp,
    stopAll: () => timers.clear(),
    random,
    // In place of those that were given last. A session that continues has what its cells have made of them.
    setEnvironment: (text) => {
      const before = configured;
      configured = JSON.parse(text);
      for (const name in before) if (!Object.hasOwn(configured, name)) delete process.env[name];
      for (const name in configured) if (configured[name] !== before[name]) process.env[name] = configured[name];
    },
    complete: (text) => {
      const parts = text.split(".");
      const last = parts.pop();
      let value = globalThis;
      for (const part of parts) {
        const found = value === undefined || value === null ? undefined : Object.getOwnPropertyDescriptor(Object(value), part);
        if (!found || found.get) return "[]";
        value = found.value;
      }
      const names = new Set();
      for (let one = Object(value); one; one = Object.getPrototypeOf(one)) for (const name of Object.getOwnPropertyNames(one)) names.add(name);
      return JSON.stringify([...names].filter((name) => name.startsWith(last) && /^[A-Za-z_$][\w$]*$/.test(name)).sort().slice(0, 500));
    },
    describe: (text) => {
      const value = text.split(".").reduce((found, part) => Object.getOwnPropertyDescriptor(Object(found), part)?.value, globalThis);
      return value === undefined ? "" : typeof value === "function" ? String(value).slice(0, 2000) : inspect(value, { depth: 2 });
    },
  };
};
