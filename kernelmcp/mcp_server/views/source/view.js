// The view of one cell: a strip (what ran, and how it ended), and its outputs. It reads, and never calls a tool.

(async () => {
  // The result usually comes first: a cell that is still running by then is followed.
  const FOLLOW_AFTER_MS = 250;
  // A page that is not there by then is shown from the result meanwhile.
  const SLOW_MS = 200;
  const WAIT_SECONDS = 15;
  const MAX_PAGES = 5_000;
  // A page that cannot be read is asked for again, a second later each time.
  const TRIES = 4;
  const NOT_FOLLOWED = "no longer followed";

  const root = /** @type {HTMLElement} */ (document.getElementById("view"));
  const strip = make("div", { class: "strip", role: "status" }), code = make("pre", { class: "code", hidden: true, tabindex: "0" });
  const body = make("div");
  root.append(strip, code, body);

  /** @type {any} */
  let can = {};
  /** @type {string[]} */
  let modes = [];
  /** @type {any} */
  let result = null;
  /** @type {Page | null} */
  let page = null;
  let status = "", since = 0, generation = 0;
  const outputs = new Outputs(body, () => Boolean(can.downloadFile));

  // -- size: a frame that is scrolled out of sight gets no ResizeObserver, so each drawing tells it, too

  let toldHeight = 0;
  function tellHeight() {
    const height = Math.ceil(root.getBoundingClientRect().height);
    if (height !== toldHeight) host.notify("ui/notifications/size-changed", { height: (toldHeight = height) });
  }
  function painted() {
    tellHeight();
    performance.mark("painted");
    requestAnimationFrame(() => requestAnimationFrame(() => performance.mark("pixels")));
  }

  // -- strip

  const icons = /** @type {Record<string, string>} */ ({ ok: "✓", running: "●", "": "●", [NOT_FOLLOWED]: "●" });
  const seconds = (/** @type {number} */ ms) => (ms < 1000 ? `${Math.round(ms)} ms` : ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`);

  function timeOf() {
    const fields = result?._meta?.["kernelmcp/result"];
    if (status === "running" || status === "") return since ? seconds(performance.now() - since) : "";
    const ms = page?.time_ms ?? fields?.execution_time_ms;
    return ms === undefined ? "" : seconds(ms);
  }

  function stateOf() {
    if (status === "ok") return icons["ok"] ?? "";
    const words = page?.waits && status === "running" ? "waiting" : status || "running";
    return `${icons[status] ?? "✗"} ${words}`;
  }

  const time = make("span");
  const fold = linkButton("", () => {
    code.hidden = !code.hidden;
    fold.setAttribute("aria-expanded", String(!code.hidden));
    tellHeight();
  }, "show the code");
  fold.setAttribute("aria-expanded", "false");

  function drawStrip() {
    const fields = result?._meta?.["kernelmcp/result"];
    const isFailed = !(status in icons), number = page?.execution_count ?? fields?.execution_count;
    const session = page?.session_id ?? fields?.session_id, files = page?.files ?? fields?.files_changed ?? [];
    const lines = (code.textContent ?? "").trimEnd().split("\n").length;
    fold.textContent = `▸ ${lines} line${lines === 1 ? "" : "s"}`;
    time.textContent = timeOf();
    strip.replaceChildren(
      make("b", { class: isFailed ? "failed" : status }, stateOf()),
      ...(number ? [make("span", {}, `[${number}]`)] : []),
      time,
      ...(code.textContent ? [fold] : []),
      ...(page?.lost ? [make("span", { class: "failed" }, "variables lost")] : []),
      ...(page?.restored ? [make("span", {}, "variables restored")] : []),
      ...files.slice(0, 4).map((/** @type {any} */ file) => fileNode(file)),
      ...(files.length > 4 ? [make("span", {}, `and ${files.length - 4} more`)] : []),
      make("span", { class: "grow" }),
      ...(status === "running" && page && can.message ? [linkButton("stop", () => void stop(), "ask for the cell to be interrupted")] : []),
      ...(session && can.downloadFile && can.serverResources ? [linkButton("notebook", () => void saveNotebook(session), "download the session as a notebook")] : []),
      ...(modes.includes("fullscreen") ? [linkButton("⤢", () => void host.request("ui/request-display-mode", { mode: "fullscreen" }).catch(() => {}), "full screen")] : []),
    );
  }

  function fileNode(/** @type {{path: string, uri: string}} */ file) {
    const words = `↓ ${file.path}`;
    return can.downloadFile && can.serverResources ? linkButton(words, () => void save(file.uri, file.path.split("/").pop() ?? "file"), "download") : make("span", {}, words);
  }

  const save = async (/** @type {string} */ uri, /** @type {string} */ name) => {
    const { mimeType, blob, text } = await readResource(uri).catch(() => ({ text: undefined, blob: undefined, mimeType: undefined }));
    if (blob !== undefined) saveFile(name, mimeType, { blob });
    else if (text !== undefined) saveFile(name, mimeType, { text });
  };
  const saveNotebook = (/** @type {string} */ session) => save(`kernelmcp://sessions/${encodeURIComponent(session)}/notebook`, `${session}.ipynb`);

  // Words to the model, which the host shows the person first: a view calls no tool.
  const stop = () =>
    host
      .request("ui/message", { role: "user", content: [{ type: "text", text: `Please stop the running cell: cancel_execution(execution_id=${JSON.stringify(page?.execution_id)}).` }] })
      .catch(() => {});

  setInterval(() => {
    if (status === "running" || status === "") time.textContent = timeOf();
  }, 1000);

  // -- pages

  const address = (/** @type {string} */ id, /** @type {string} */ cursor, /** @type {number} */ wait) => `kernelmcp://executions/${encodeURIComponent(id)}/view?since=${cursor}&wait=${wait}`;
  const latest = (/** @type {string} */ more) => `kernelmcp://views/latest?code=${mark(code.textContent ?? "")}${more}`;

  const pause = (/** @type {number} */ ms) => new Promise((end) => setTimeout(end, ms));

  async function readPage(/** @type {string} */ uri) {
    for (let tries = 1; ; tries++) {
      try {
        return await readJson(uri);
      } catch (error) {
        if (tries === TRIES) throw error;
        await pause(1000 * tries);
      }
    }
  }

  function show(/** @type {Page} */ next) {
    page = next;
    status = next.status;
    if (status === "running") since = performance.now() - next.time_ms;
    outputs.show(next);
    drawStrip();
    painted();
  }

  /** Show the pages of an execution until it has ended. @param {Page} first @param {number} mine */
  async function follow(first, mine) {
    let next = first;
    for (let pages = 0; mine === generation && pages < MAX_PAGES; pages++) {
      show(next);
      if (next.status !== "running") return;
      const asked = performance.now(), { cursor } = next;
      next = await readPage(address(next.execution_id, cursor, WAIT_SECONDS));
      // A host or a server that does not wait.
      if (next.cursor === cursor && next.status === "running" && performance.now() - asked < 1000) await pause(1000);
    }
    if (mine === generation) throw new Error("a cell of too many pages");
  }

  async function followBeforeResult() {
    const mine = ++generation;
    try {
      await follow(await readJson(latest(`&live=1&wait=${WAIT_SECONDS}`)), mine);
    } catch {
      // The result comes without it.
    }
  }

  async function showResult() {
    const known = result._meta?.["kernelmcp/result"] ?? result.structuredContent, id = known?.execution_id;
    status = known?.status ?? (result.isError ? "error" : "ok");
    if (known && !id) page = null; // a call that was refused: what ran before it was another one's
    drawStrip();
    const fallBack = () => {
      outputs.showContent(result.content ?? [], result.isError === true);
      painted();
    };
    const giveUp = () => {
      if (!page || status !== "running") fallBack();
      if (status !== "running") return;
      status = NOT_FOLLOWED;
      drawStrip();
    };
    const mine = ++generation;
    if (!can.serverResources || (known && !id)) return giveUp();
    const slow = setTimeout(() => mine === generation && !page && fallBack(), SLOW_MS);
    try {
      const first = await readJson(id ? address(id, "", 0) : latest("&wait=0"));
      if (mine === generation) await follow(first, mine);
    } catch {
      if (mine === generation) giveUp();
    } finally {
      clearTimeout(slow);
    }
  }

  /** CRC-32 and length: how the server finds the execution of this code among the caller's own. @param {string} text */
  function mark(text) {
    const bytes = new TextEncoder().encode(text);
    let crc = 0xffffffff;
    for (const byte of bytes) {
      crc ^= byte;
      for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return `${((crc ^ 0xffffffff) >>> 0).toString(16).padStart(8, "0")}-${bytes.length}`;
  }

  // -- the host

  function dress(/** @type {any} */ context) {
    const { theme, styles, availableDisplayModes } = context ?? {};
    if (theme) document.documentElement.dataset["theme"] = theme;
    for (const [name, value] of Object.entries(styles?.variables ?? {})) if (name.startsWith("--") && value) document.documentElement.style.setProperty(name, String(value));
    if (Array.isArray(availableDisplayModes)) modes = availableDisplayModes;
  }

  host.on("ui/notifications/tool-input", ({ arguments: given = {} }) => {
    if (code.textContent) return; // hosts may send it twice
    code.textContent = String(given.code ?? given.command ?? "");
    since = performance.now();
    drawStrip();
    tellHeight();
    setTimeout(() => void (!result && can.serverResources && followBeforeResult()), FOLLOW_AFTER_MS);
  });
  host.on("ui/notifications/tool-result", (found) => {
    if (result) return;
    result = found;
    showResult();
  });
  host.on("ui/notifications/tool-cancelled", () => {
    if (result) return;
    generation++;
    status = "cancelled";
    drawStrip();
    tellHeight();
  });
  host.on("ui/notifications/host-context-changed", async (context) => {
    const before = document.documentElement.dataset["theme"];
    dress(context);
    drawStrip();
    if (document.documentElement.dataset["theme"] === before || !outputs.hasFrames || !page || status === "running") return;
    // Frames take their colours when they begin.
    await readJson(address(page.execution_id, "", 0)).then(show, () => {});
  });
  new ResizeObserver(tellHeight).observe(root);
  document.addEventListener("resized", tellHeight);

  const answer = await host.request("ui/initialize", {
    appInfo: { name: "kernelmcp", version: "1" },
    appCapabilities: { availableDisplayModes: ["inline", "fullscreen"] },
    protocolVersion: "2026-01-26",
  });
  can = answer.hostCapabilities ?? {};
  dress(answer.hostContext);
  host.notify("ui/notifications/initialized");
  drawStrip();
  tellHeight();
})();
