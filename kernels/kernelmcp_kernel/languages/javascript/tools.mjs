// Calls of the user's other MCP servers' tools. The kernel process has the call, /servers/index.json what there is.
//
// The calls of one turn of the event loop leave in one host call, and one host call at a time waits for replies.
const INDEX = "/servers/index.json";
const NO_OFFER = "no MCP servers are offered to this kernel";
// The kernel process refuses more than 256 at a time.
const MAX_SENT = 192;
const MOST_FOUND = 8;

/** @typedef {{value?: any, error?: string, lines?: string}} Answer */
/** @typedef {{number: number, server: string, tool: string, args: object, resolve: (text: string) => void}} Call */
/** @typedef {Record<string, {name: string, about: string, tools: Record<string, string[]>, denied?: Record<string, string>}>} Index */

export class Tools {
  /** @param {(call: object) => Promise<Answer>} ask makes a host call @param {import("./files.mjs").Files} files */
  constructor(ask, files) {
    this.ask = ask;
    this.files = files;
    this.count = 0;
    this.asked = 0; // which host call waits for replies; 0: none
    this.isScheduled = false;
    /** @type {Index | undefined} as it was at `stamp` */
    this.index = undefined;
    this.note = ""; // of servers that are not connected yet
    /** @type {string | undefined} */
    this.stamp = undefined;
    /** @type {Map<number, Call>} */
    this.sent = new Map();
    /** @type {Call[]} */
    this.unsent = [];
  }

  /** @param {string} wanted "server.tool", or a tool that one server alone has @param {object} args
   * @returns {Promise<string>} JSON: {result}, {line: JSON of a result that nobody has looked at} or {error: {kind, message}} */
  call(wanted, args) {
    const { server, tool, error } = this.#find(wanted);
    if (error) return Promise.resolve(JSON.stringify({ error }));
    return new Promise((resolve) => {
      this.unsent.push({ number: ++this.count, server, tool, args, resolve });
      this.#schedule();
    });
  }

  /** The names of what is offered: of servers, or of a server's tools. @param {string} [server] @returns {string[]} */
  names(server) {
    const index = this.#index() ?? {};
    if (server === undefined) return Object.keys(index);
    return Object.hasOwn(index, server) ? Object.keys(index[server].tools) : [];
  }

  /** The tools that fit some words best, one line each. @param {string} text */
  search(text) {
    const index = this.#index();
    if (!index) return NO_OFFER;
    const words = (text.toLowerCase().match(/[a-z0-9]+/g) ?? []).map((word) => word.replace(/s$/, ""));
    const found = Object.entries(index).flatMap(([server, { tools }]) =>
      Object.entries(tools).map(([name, [, brief, , about]]) => {
        const line = `servers.${server}.${brief || name}  // ${about ?? ""}`;
        const [own, all] = [`${server} ${name}`.toLowerCase(), line.toLowerCase()];
        return { line, score: words.reduce((sum, word) => sum + 4 * +own.includes(word) + +all.includes(word), 0) };
      }),
    );
    const best = found.filter(({ score }) => score).sort((one, other) => other.score - one.score);
    const lines = best.slice(0, MOST_FOUND).map(({ line }) => line);
    return [...(lines.length ? lines : ["no tool is found"]), ...(this.note ? [this.note] : [])].join("\n");
  }

  #schedule() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    setImmediate(() => {
      this.isScheduled = false;
      const hasMore = this.unsent.length > 0 && this.sent.size < MAX_SENT;
      if (hasMore || (this.sent.size && !this.asked)) void this.#exchange();
    });
  }

  async #exchange() {
    const calls = this.unsent.splice(0, MAX_SENT - this.sent.size);
    for (const call of calls) this.sent.set(call.number, call);
    const serial = (this.asked = ++this.count);
    /** @type {Answer} */
    let answer;
    try {
      answer = await this.ask({ call: "tools", calls: calls.map(({ number, server, tool, args }) => [number, server, tool, args]) });
    } catch (error) {
      answer = { error: /** @type {Error} */ (error).message }; // larger than a frame may be
    }
    const isNewest = serial === this.asked;
    if (isNewest) this.asked = 0;
    const [head, ...lines] = (answer.lines ?? "[]").split("\n");
    const replies = JSON.parse(head);
    for (const [number, reply] of replies) {
      const body = typeof reply.line === "number" ? { line: lines[reply.line - 1] } : reply;
      this.sent.get(number)?.resolve(JSON.stringify(body));
      this.sent.delete(number);
    }
    if (isNewest && !replies.length) {
      const error = { kind: "ServerUnavailable", message: answer.error ?? "interrupted" };
      for (const call of this.sent.values()) call.resolve(JSON.stringify({ error }));
      this.sent.clear();
    }
    this.#schedule();
  }

  /** @returns {Index | undefined} */
  #index() {
    try {
      const { size, mtimeMs } = this.files.call("stat", [INDEX]);
      const stamp = `${size} ${mtimeMs}`;
      if (stamp !== this.stamp) {
        const { servers, note = "" } = JSON.parse(this.files.read(INDEX).toString());
        [this.index, this.note, this.stamp] = [servers, note, stamp];
      }
    } catch {
      this.index = this.stamp = undefined;
    }
    return this.index;
  }

  /** What the server and the tool call themselves. @param {string} wanted
   * @returns {{server: string, tool: string, error?: {kind: string, message: string}}} */
  #find(wanted) {
    const none = { server: "", tool: "" };
    const index = this.#index();
    if (!index) return { ...none, error: { kind: "ServerUnavailable", message: NO_OFFER } };
    const exact = matching(index, wanted, (name) => name);
    const close = exact.length ? exact : matching(index, wanted, folded);
    const found = close.length ? close : matching(index, wanted, folded, true); // the client's answer names the setting
    if (found.length === 1) return found[0];
    const [own = "", { about = "", tools = {} } = {}] =
      Object.entries(index).find(([own, { name }]) => [own, name].some((each) => wanted.startsWith(`${each}.`))) ?? [];
    if (own && !Object.keys(tools).length) {
      return { ...none, error: { kind: "ServerUnavailable", message: `${own} has no tools now: ${about}` } };
    }
    const message = found.length
      ? `several servers have a tool '${wanted}': ${found.map(({ shown }) => shown).join(", ")}`
      : `there is no tool '${wanted}': servers.search("words") finds tools${this.note && `; ${this.note}`}`;
    return { ...none, error: { kind: "ToolError", message } };
  }
}

/** What a name may mean; names are the same where they are when they are so spelled.
 * @param {Index} index @param {string} wanted @param {(name: string) => string} spelled
 * @param {boolean} isDenied of the denied tools */
function matching(index, wanted, spelled, isDenied = false) {
  const looked = spelled(wanted);
  return Object.entries(index).flatMap(([server, { name, tools, denied = {} }]) =>
    (isDenied ? Object.entries(denied) : Object.entries(tools).map(([own, [original]]) => [own, original]))
      .filter(([own, original]) =>
        [own, original].some((tool) => [tool, `${server}.${tool}`, `${name}.${tool}`].map(spelled).includes(looked)),
      )
      .map(([own, original]) => ({ server: name, tool: original, shown: `${server}.${own}` })),
  );
}

/** getDeal is get_deal. @param {string} name */
function folded(name) {
  return name.replace(/[_-]/g, "").toLowerCase();
}
