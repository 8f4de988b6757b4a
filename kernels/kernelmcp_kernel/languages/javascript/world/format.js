// What every part of the world has: a way to define a global, and `format`, as of Node's util.
(host, world) => {
  "use strict";
  const { inspect } = world;
  // Of a text in which `%` means something; nobody writes longer ones, and each character of it would be looked at.
  const MAX_FORMAT = 100_000;
  world.define = (name, value) =>
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });

  const show = (value) => (typeof value === "string" ? value : inspect(value));
  world.format = (...values) => {
    const [first, ...rest] = values;
    if (typeof first !== "string" || !rest.length || first.length > MAX_FORMAT) return values.map(show).join(" ");
    const text = first.replace(/%[sdifjoOc%]/g, (found) => {
      if (found === "%%") return "%";
      if (!rest.length) return found;
      const value = rest.shift();
      if (found === "%s") return show(value);
      if (found === "%c") return "";
      if (found === "%j") return JSON.stringify(value);
      if (found === "%d") return String(Number(value));
      if (found === "%i") return String(Number.parseInt(value, 10));
      return found === "%f" ? String(Number.parseFloat(value)) : inspect(value);
    });
    return [text, ...rest.map(show)].join(" ");
  };
};
