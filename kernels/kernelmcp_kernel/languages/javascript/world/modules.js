// `require` and `process`: Node's modules that are here, and files of the session.
(host, world) => {
  "use strict";
  const { ask, define, format, fs, inspect, path, promises } = world;

  class AssertionError extends Error {
    name = "AssertionError";
  }
  const assert = (holds, message) => {
    if (!holds) throw message instanceof Error ? message : new AssertionError(message ?? "The expression evaluated to a falsy value");
  };
  const isEqual = (one, other) => one == other || Object.is(one, other);
  const isObject = (value) => typeof value === "object" && value !== null;
  const isCollection = (value) => value instanceof Map || value instanceof Set;
  const parts = (value) => {
    if (isCollection(value)) return [value.size, value instanceof Map];
    if (ArrayBuffer.isView(value)) return [...value];
    return value instanceof Date || value instanceof RegExp ? [String(value), Number(value)] : [];
  };
  const same = (one, other, isStrict, seen = new Map()) => {
    if (!isObject(one) || !isObject(other)) return isStrict || isObject(one) || isObject(other) ? Object.is(one, other) : isEqual(one, other);
    if (isStrict && Object.getPrototypeOf(one) !== Object.getPrototypeOf(other)) return false;
    if (seen.get(one) === other) return true;
    seen.set(one, other);
    if (sameParts(one, other, isStrict, seen)) return true;
    seen.delete(one);
    return false;
  };
  const sameParts = (one, other, isStrict, seen) => {
    const [own, others] = [parts(one), parts(other)];
    const keys = Object.keys(one);
    if (own.length !== others.length || keys.length !== Object.keys(other).length) return false;
    if (one instanceof Error && (one.message !== other.message || one.name !== other.name)) return false;
    return (
      own.every((value, at) => same(value, others[at], isStrict, seen)) &&
      keys.every((key) => Object.hasOwn(other, key) && same(one[key], other[key], isStrict, seen)) &&
      (!isCollection(one) || sameEntries(one, other, isStrict, seen))
    );
  };
  const sameEntries = (one, other, isStrict, seen) => {
    const left = new Map(other.entries());
    return [...one.entries()].every((entry) => {
      const isIt = (each) => same(entry, each, isStrict, seen);
      const found = left.has(entry[0]) ? [entry[0], left.get(entry[0])] : left.entries().find(isIt);
      return found !== undefined && same(entry[1], found[1], isStrict, seen) && left.delete(found[0]);
    });
  };
  const isExpected = (error, expected) => {
    if (expected instanceof RegExp) return expected.test(String(error));
    if (typeof expected === "function") {
      if (expected.prototype !== undefined && error instanceof expected) return true;
      return expected !== Error && !(expected.prototype instanceof Error) && expected.call({}, error) === true;
    }
    const keys = expected instanceof Error ? ["name", "message", ...Object.keys(expected)] : Object.keys(expected);
    return keys.every((key) => {
      const [wanted, found] = [expected[key], error?.[key]];
      return wanted instanceof RegExp && typeof found === "string" ? wanted.test(found) : same(wanted, found, true);
    });
  };
  Object.assign(assert, {
    AssertionError,
    ok: assert,
    equal: (one, other, message) => assert(isEqual(one, other), message ?? `${inspect(one)} == ${inspect(other)}`),
    strictEqual: (one, other, message) => assert(Object.is(one, other), message ?? `${inspect(one)} === ${inspect(other)}`),
    notStrictEqual: (one, other, message) => assert(!Object.is(one, other), message ?? `${inspect(one)} !== ${inspect(other)}`),
    notEqual: (one, other, message) => assert(!isEqual(one, other), message ?? `${inspect(one)} != ${inspect(other)}`),
    deepEqual: (one, other, message) => assert(same(one, other, false), message ?? `${inspect(one)} deepEqual ${inspect(other)}`),
    deepStrictEqual: (one, other, message) => assert(same(one, other, true), message ?? `${inspect(one)} deepStrictEqual ${inspect(other)}`),
    notDeepEqual: (one, other, message) => assert(!same(one, other, false), message ?? `${inspect(one)} notDeepEqual ${inspect(other)}`),
    notDeepStrictEqual: (one, other, message) =>
      assert(!same(one, other, true), message ?? `${inspect(one)} notDeepStrictEqual ${inspect(other)}`),
    throws: (call, ...given) => {
      const [expected, message] = typeof given[0] === "string" ? [undefined, ...given] : given;
      try {
        call();
      } catch (error) {
        const isIt = expected === undefined || isExpected(error, expected);
        return assert(isIt, message ?? `${inspect(error)} is not the expected exception: ${inspect(expected)}`);
      }
      assert(false, message ?? "Missing expected exception");
    },
  });
  const { strictEqual: equal, notStrictEqual: notEqual, deepStrictEqual: deepEqual, notDeepStrictEqual: notDeepEqual } = assert;
  const strict = Object.assign((...values) => assert(...values), assert, { equal, notEqual, deepEqual, notDeepEqual });
  assert.strict = strict.strict = strict;
  const modules = {
    __proto__: null,
    fs,
    "fs/promises": promises,
    path,
    "path/posix": path,
    util: { inspect, format },
    assert,
    "assert/strict": strict,
    process: undefined,
    timers: { setTimeout, setInterval, setImmediate, clearTimeout, clearInterval, clearImmediate },
    "timers/promises": { setTimeout: (delay, value) => new Promise((done) => setTimeout(done, delay, value)) },
    url: { URL, URLSearchParams },
    buffer: { Buffer },
    crypto,
    os: { EOL: "\n", platform: () => "linux", tmpdir: () => "/tmp", homedir: () => "/workspace" },
  };
  const cached = { __proto__: null };
  const stamps = new Map(); // of the files that were loaded
  let version = 0;
  const stampOf = (file) => {
    if (!fs.existsSync(file)) return "";
    const { mtimeMs, size } = fs.statSync(file);
    return `${mtimeMs} ${size}`;
  };
  // The first stamp stays: an import has what was there then.
  const stamp = (file) => {
    if (!stamps.has(file)) stamps.set(file, stampOf(file));
  };
  // What has loaded a file that has changed has the old one: all are loaded anew.
  const renew = () => {
    if ([...stamps].every(([file, stamp]) => stampOf(file) === stamp)) return;
    for (const file in cached) delete cached[file];
    for (const one of [stamps, names, imports, roots]) one.clear();
    version += 1;
  };
  const isBuiltIn = (name) => modules[String(name).replace(/^node:/, "")] !== undefined;
  const resolveFrom = (folder) => (name) => {
    if (isBuiltIn(name)) return name;
    if (!/^\.{0,2}\//.test(name)) throw Object.assign(new Error(host.noModule(String(name))), { code: "MODULE_NOT_FOUND" });
    const file = path.resolve(folder, name);
    const found = [file, `${file}.js`, `${file}.json`, `${file}/index.js`].find((one) => fs.existsSync(one) && fs.statSync(one).isFile());
    if (!found) throw Object.assign(new Error(`Cannot find module '${name}'`), { code: "MODULE_NOT_FOUND" });
    return found;
  };
  const load = (file) => {
    stamp(file);
    const text = fs.readFileSync(file, "utf-8");
    const module = { exports: {}, loaded: false };
    cached[file] = module;
    try {
      if (file.endsWith(".json")) module.exports = JSON.parse(text);
      else host.compile(text, file)(module, module.exports, requireFrom(path.dirname(file)), file, path.dirname(file));
    } catch (error) {
      delete cached[file];
      throw error;
    }
    module.loaded = true;
    return module;
  };
  const requireFrom = (folder) => Object.assign((name) => {
    if (isBuiltIn(name)) return modules[String(name).replace(/^node:/, "")];
    const found = resolveFrom(folder)(name);
    return (cached[found] ?? load(found)).exports;
  }, { cache: cached, resolve: resolveFrom(folder) });
  // What is not loaded when a cell begins was interrupted.
  world.forgetInterrupted = () => {
    for (const file in cached) if (cached[file]?.loaded === false) delete cached[file];
  };
  // QuickJS keeps what it has loaded, or what has failed, under this name.
  const names = new Map(); // of files
  const imports = new Map(); // what each of these names itself
  const linking = new Set(); // those that name it now
  const roots = new Set(); // what `import()` was called with, unless it has failed
  const underWay = new Set(); // of these
  world.moduleName = (file, from) => {
    if (!file.startsWith("/")) return file;
    if (!from.startsWith("/")) renew();
    stamp(file);
    if (!names.has(file)) names.set(file, version ? `${file}?${version}` : file);
    const name = names.get(file);
    if (linking.has(from)) imports.get(from)?.add(name);
    else void follow(name);
    if (!imports.has(name)) void link(name);
    return name;
  };
  const link = async (name) => {
    imports.set(name, new Set());
    linking.add(name);
    await undefined; // QuickJS asks for all at once, before anything runs
    linking.delete(name);
  };
  const follow = async (name) => {
    roots.add(name);
    underWay.add(name);
    try {
      await import(name); // realm.mjs does not ask for another name
    } catch {
      forget([name]);
    }
    underWay.delete(name);
  };
  // What only these have loaded is loaded anew.
  const forget = (failed) => {
    for (const name of failed) roots.delete(name);
    const kept = new Set(roots);
    for (const name of kept) for (const one of imports.get(name) ?? []) kept.add(one);
    for (const [file, name] of names) {
      if (kept.has(name)) continue;
      names.delete(file);
      imports.delete(name);
    }
    version += 1;
  };
  // What is under way does not come to its end any more.
  world.giveUp = () => {
    forget(underWay);
    underWay.clear();
  };
  define("process", {
    argv: ["node"],
    env: {},
    platform: "linux",
    version: "",
    versions: {},
    pid: 1,
    cwd: () => host.cwd(),
    chdir: (folder) => ask("chdir", String(folder)),
    exit: () => {
      throw new Error("process.exit() ends nothing here: the session goes on. Leave the cell with return values or throw.");
    },
    nextTick: (callback, ...values) => queueMicrotask(() => callback(...values)),
    hrtime: Object.assign(
      (since = [0, 0]) => {
        const now = Math.round(host.now() * 1e6) - since[0] * 1e9 - since[1];
        return [Math.floor(now / 1e9), now - Math.floor(now / 1e9) * 1e9];
      },
      { bigint: () => BigInt(Math.round(host.now() * 1e6)) },
    ),
    uptime: () => host.now() / 1000,
    memoryUsage: () => ({ rss: host.memorySize(), heapTotal: host.memorySize(), heapUsed: host.memoryUsed() }),
    stdout: { write: (text) => (host.write("stdout", String(text)), true), isTTY: false },
    stderr: { write: (text) => (host.write("stderr", String(text)), true), isTTY: false },
    on: () => process,
  });
  modules.process = process;
  const require = (name) => {
    renew();
    return requireFrom(process.cwd())(name);
  };
  define("require", Object.assign(require, { cache: cached, resolve: (name) => resolveFrom(process.cwd())(name) }));
  define("global", globalThis);
  world.modules = modules;
};
