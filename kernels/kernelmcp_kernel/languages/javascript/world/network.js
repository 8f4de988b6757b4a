// `fetch` and addresses. Requests are made by the kernel process, which decides.
(host, world) => {
  "use strict";
  const { bytesOf, define } = world;
  const PARTS = ["href", "origin", "protocol", "username", "password", "host", "hostname", "port", "pathname", "search", "hash"];
  const pairsOf = (given) => {
    if (typeof given === "string") return JSON.parse(host.parseQuery(given));
    return (given[Symbol.iterator] ? [...given] : Object.entries(given)).map((pair) => pair.map(String));
  };

  define("Headers", class Headers {
    #all = new Map();
    constructor(given = {}) {
      const pairs = given instanceof Headers || Array.isArray(given) ? [...given] : Object.entries(given);
      for (const [name, value] of pairs) this.append(name, value);
    }
    append(name, value) {
      const key = String(name).toLowerCase();
      this.#all.set(key, this.#all.has(key) ? `${this.#all.get(key)}, ${value}` : String(value));
    }
    set(name, value) {
      this.#all.set(String(name).toLowerCase(), String(value));
    }
    get(name) {
      return this.#all.get(String(name).toLowerCase()) ?? null;
    }
    has(name) {
      return this.#all.has(String(name).toLowerCase());
    }
    delete(name) {
      this.#all.delete(String(name).toLowerCase());
    }
    forEach(call) {
      for (const [name, value] of this) call(value, name, this);
    }
    entries() {
      return this[Symbol.iterator]();
    }
    keys() {
      return [...this].map(([name]) => name).values();
    }
    values() {
      return [...this].map(([, value]) => value).values();
    }
    [Symbol.iterator]() {
      return [...this.#all].sort(([one], [other]) => (one < other ? -1 : 1)).values();
    }
  });
  define("Response", class Response {
    #body;
    constructor(body, { status = 200, statusText = "", headers = {}, url = "", redirected = false } = {}) {
      this.#body = typeof body === "string" ? host.encode(body, "utf-8") : body ? bytesOf(body) : new ArrayBuffer(0);
      Object.assign(this, { status, statusText, url, redirected, bodyUsed: false });
      this.headers = new Headers(headers);
      this.ok = status >= 200 && status < 300;
    }
    async arrayBuffer() {
      if (this.bodyUsed) throw new TypeError("the body has been read already");
      this.bodyUsed = true;
      return this.#body;
    }
    async text() {
      return host.decodeText(await this.arrayBuffer(), "utf-8", false, false);
    }
    async json() {
      return JSON.parse(await this.text());
    }
  });
  define("fetch", async (input, init = {}) => {
    const { method = "GET", headers, body = null, redirect = "follow" } = init;
    const request = {
      method: String(method).toUpperCase(),
      url: String(input?.url ?? input),
      headers: [...new Headers(headers)],
      body: body === null ? null : host.decode(typeof body === "string" ? host.encode(body, "utf-8") : bytesOf(body), "base64"),
      redirect,
    };
    const answer = JSON.parse(await host.fetch(JSON.stringify(request)));
    if (answer.error) throw new TypeError(answer.error);
    return new Response(host.encode(answer.body, "base64"), answer);
  });
  define("URLSearchParams", class URLSearchParams {
    #query;
    // query: of a URL, which has it as its text
    constructor(given = "", query = { pairs: pairsOf(given) }) {
      this.#query = query;
    }
    append(name, value) {
      const { pairs } = this.#query;
      pairs.push([String(name), String(value)]);
      this.#query.pairs = pairs;
    }
    delete(name) {
      this.#query.pairs = this.#query.pairs.filter(([one]) => one !== name);
    }
    set(name, value) {
      const { pairs } = this.#query;
      const at = pairs.findIndex(([one]) => one === name);
      if (at < 0) return this.append(name, value);
      pairs[at][1] = String(value);
      this.#query.pairs = pairs.filter(([one], place) => one !== name || place === at);
    }
    get(name) {
      return this.#query.pairs.find(([one]) => one === name)?.[1] ?? null;
    }
    getAll(name) {
      return this.#query.pairs.filter(([one]) => one === name).map(([, value]) => value);
    }
    has(name) {
      return this.#query.pairs.some(([one]) => one === name);
    }
    get size() {
      return this.#query.pairs.length;
    }
    sort() {
      this.#query.pairs = this.#query.pairs.sort(([one], [other]) => (one < other ? -1 : Number(one > other)));
    }
    forEach(call, own) {
      for (const [name, value] of this) call.call(own, value, name, this);
    }
    entries() {
      return this[Symbol.iterator]();
    }
    keys() {
      return this.#query.pairs.map(([name]) => name).values();
    }
    values() {
      return this.#query.pairs.map(([, value]) => value).values();
    }
    toString() {
      return host.formatQuery(JSON.stringify(this.#query.pairs));
    }
    [Symbol.iterator]() {
      return this.#query.pairs.map((pair) => [...pair]).values();
    }
  });
  define("URL", class URL {
    #parts;
    constructor(url, base) {
      this.#take(host.parseURL(String(url), base === undefined ? "" : String(base)));
      const own = this;
      this.searchParams = new URLSearchParams("", {
        get pairs() {
          return pairsOf(own.search);
        },
        set pairs(pairs) {
          own.search = host.formatQuery(JSON.stringify(pairs));
        },
      });
    }
    static {
      for (const name of PARTS) {
        const get = function () {
          return this.#parts[name];
        };
        const set = function (value) {
          this.#take(host.changeURL(this.#parts.href, name, String(value)));
        };
        Object.defineProperty(this.prototype, name, { get, set: name === "origin" ? undefined : set, configurable: true });
      }
    }
    #take(text) {
      const { error, ...parts } = JSON.parse(text);
      if (error) throw new TypeError(error);
      this.#parts = parts;
    }
    toString() {
      return this.href;
    }
    toJSON() {
      return this.href;
    }
    [world.inspect.custom]() {
      return `URL ${world.inspect({ ...this.#parts, searchParams: this.searchParams })}`;
    }
  });
};
