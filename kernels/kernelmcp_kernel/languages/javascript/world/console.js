// `console`, and `display` for rich output.
(host, world) => {
  "use strict";
  const { define, format, inspect } = world;

  const MAX_ROWS = 1000;
  let margin = "";
  const counts = new Map();
  const began = new Map();
  const indented = (text) => (margin ? margin + text.replaceAll("\n", `\n${margin}`) : text);
  const put = (stream, text) => host.write(stream, `${indented(text)}\n`);
  const out = (...values) => put("stdout", format(...values));
  const err = (...values) => put("stderr", format(...values));
  const since = (label) => `${label}: ${(host.now() - (began.get(label) ?? host.now())).toFixed(3)}ms`;
  const group = (...values) => {
    if (values.length) out(...values);
    margin += "  ";
  };
  const table = (rows) => {
    if (typeof rows !== "object" || rows === null) return out(rows);
    const entries = Object.entries(rows).slice(0, MAX_ROWS);
    const names = new Set(entries.flatMap(([, row]) => (typeof row === "object" && row !== null ? Object.keys(row) : [])));
    const hasValues = entries.some(([, row]) => typeof row !== "object" || row === null);
    const head = ["(index)", ...names, ...(hasValues ? ["Values"] : [])];
    const cell = (row, name) => (typeof row === "object" && row !== null && name in row ? inspect(row[name]) : "");
    const body = entries.map(([key, row]) => {
      const isValue = typeof row !== "object" || row === null;
      return [key, ...[...names].map((name) => cell(row, name)), ...(hasValues ? [isValue ? inspect(row) : ""] : [])];
    });
    const widths = head.map((name, at) => body.reduce((widest, line) => Math.max(widest, line[at].length), name.length));
    const line = (cells) => cells.map((text, at) => text.padEnd(widths[at])).join(" | ").trimEnd();
    const more = Object.keys(rows).length - entries.length;
    const rest = more ? [`... ${more} more rows`] : [];
    put("stdout", [line(head), widths.map((width) => "-".repeat(width)).join("-|-"), ...body.map(line), ...rest].join("\n"));
  };
  define("console", {
    log: out,
    info: out,
    debug: out,
    error: err,
    warn: err,
    dir: (value, options) => put("stdout", inspect(value, options)),
    trace: (...values) => err(`Trace: ${format(...values)}\n${new Error().stack}`),
    assert: (holds, ...values) => {
      if (!holds) err(values.length ? `Assertion failed: ${format(...values)}` : "Assertion failed");
    },
    count: (label = "default") => {
      counts.set(label, (counts.get(label) ?? 0) + 1);
      out(`${label}: ${counts.get(label)}`);
    },
    countReset: (label = "default") => counts.delete(label),
    time: (label = "default") => began.set(label, host.now()),
    timeLog: (label = "default", ...values) => out(since(label), ...values),
    timeEnd: (label = "default") => {
      out(since(label));
      began.delete(label);
    },
    group,
    groupCollapsed: group,
    groupEnd: () => {
      margin = margin.slice(2);
    },
    table,
  });
  define("display", (data, metadata = {}) => {
    const isBundle = typeof data === "object" && data !== null && Object.keys(data).some((key) => key.includes("/"));
    host.display(JSON.stringify({ data: isBundle ? data : { "text/plain": inspect(data) }, metadata }));
  });
};
