// What a guest wrote, in a frame of its own: an opaque origin, no network, and no script of the guest's unless the person asked
// for it. The frame's first script, ours, tells its height; nothing else that a frame says is heard.

const MAX_FRAME_PX = 520, MIN_FRAME_PX = 16;
// A chart that is not drawn by then is shown as its picture or text; Markdown and formulas, as they were written.
const CHART_MS = 15_000;

const policyOf = (/** @type {string} */ scripts) =>
  `default-src 'none'; script-src ${scripts}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; ` +
  "media-src data: blob:; form-action 'none'; base-uri 'none'; frame-src 'none'";

const HEIGHT_REPORTER =
  "{const tell=()=>parent.postMessage({height:Math.ceil(document.documentElement.getBoundingClientRect().height)},'*');" +
  "new ResizeObserver(tell).observe(document.documentElement);addEventListener('load',tell)}";

const isDark = () => document.documentElement.dataset["theme"] === "dark";

/** @param {string} body @param {{scripts?: "none" | "all", head?: (nonce: string) => string, title?: string, onSaid?: (said: any) => void}} options */
function guestFrame(body, { scripts = "none", head = () => "", title = "HTML that the cell displayed", onSaid } = {}) {
  const nonce = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  const frame = /** @type {HTMLIFrameElement} */ (
    make("iframe", { sandbox: "allow-scripts", referrerpolicy: "no-referrer", credentialless: true, allow: "", title, height: "40" })
  );
  const policy = policyOf(scripts === "all" ? "'unsafe-inline'" : `'nonce-${nonce}'`);
  const style =
    `html{display:flow-root;color:${isDark() ? "#ececec" : "#1f1f1f"};font:13px/1.45 system-ui,sans-serif}body{margin:0}` +
    "table{border-collapse:collapse}td,th{padding:2px 8px}img,svg{max-width:100%}";
  frame.srcdoc =
    `<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${policy}"><style>${style}</style>` +
    `<script nonce="${nonce}">${HEIGHT_REPORTER}</script>${head(nonce)}<body>${body}`;
  const hear = (/** @type {MessageEvent} */ { source, data }) => {
    if (frame.dataset["shown"] && !frame.isConnected) window.removeEventListener("message", hear);
    if (source === null || source !== frame.contentWindow) return;
    frame.dataset["shown"] = "yes";
    if (Number.isFinite(data?.height)) {
      frame.style.height = `${Math.min(Math.max(data.height, MIN_FRAME_PX), MAX_FRAME_PX)}px`;
      document.dispatchEvent(new Event("resized"));
    }
    onSaid?.(data);
  };
  window.addEventListener("message", hear);
  return frame;
}

/** HTML without what would load, navigate or run, and whether it had scripts. The frame's policy and sandbox are what holds;
 * this spares error messages, and keeps clicks from leading away. @param {string} html */
function inert(html) {
  const parsed = new DOMParser().parseFromString(html, "text/html");
  const hasScripts = parsed.querySelector("script, iframe, object, embed") !== null;
  for (const node of parsed.querySelectorAll("script, meta, base, link, iframe, object, embed, frame, portal, input[type=password]")) node.remove();
  // The address is a tooltip. "#" would lead away, too: it is resolved against the address of the frame's parent.
  for (const node of parsed.querySelectorAll("[href], [action], [formaction], [ping]")) {
    node.setAttribute("title", (node.getAttribute("href") ?? "").slice(0, 300));
    for (const name of ["href", "action", "formaction", "ping"]) node.removeAttribute(name);
  }
  const styles = [...parsed.head.querySelectorAll("style")].map((style) => style.outerHTML);
  return { hasScripts, html: styles.join("") + parsed.body.innerHTML };
}

/** A guest's HTML. What is its own is said outside of its frame: it can draw what looks like a question of the host.
 * @param {string} html @param {string} written what the guest wrote */
function guestHtml(html, written = "HTML") {
  const title = `${written} that the cell displayed`, label = make("div", { class: "note" }, `${written} of the cell`);
  const calm = inert(html), frame = guestFrame(calm.html, { title });
  if (calm.hasScripts && document.documentElement.dataset["scripts"] === "allowed") {
    const run = linkButton("run its scripts", () => {
      frame.replaceWith(guestFrame(html, { scripts: "all" }));
      run.remove();
    });
    label.append(" · ", run);
  } else if (calm.hasScripts) {
    label.append("; its scripts do not run here");
  }
  return make("div", {}, frame, label);
}

/** @type {Map<string, Promise<string>>} */
const libraries = new Map();

/** The source of a library, from the server. @param {string} name */
function library(name) {
  const load = async () => {
    const { blob = "" } = await readResource(`kernelmcp://views/${name}`);
    const bytes = Uint8Array.from(atob(blob), (letter) => letter.charCodeAt(0));
    const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return (await new Response(unpacked).text()).replaceAll("</script", "<\\/script");
  };
  const known = libraries.get(name) ?? load();
  libraries.set(name, known);
  known.catch(() => libraries.delete(name)); // another time, it may be read
  return known;
}

const CHART_PROGRAM =
  "addEventListener('message',async({source,data})=>{if(source!==parent)return;" +
  "try{await show(document.body,data.specification,data.dark);" +
  "parent.postMessage({drawn:true,height:Math.ceil(document.documentElement.getBoundingClientRect().height)},'*')}" +
  "catch{parent.postMessage({failed:true},'*')}},{once:true});parent.postMessage({ready:true},'*')";

/** Draw a chart below what `place` has. Rejects if it cannot be drawn. @param {"vega" | "plotly"} name @param {any} specification
 * @param {HTMLElement} place */
async function drawChart(name, specification, place) {
  const source = await library(name);
  await new Promise((resolve, reject) => {
    const fail = () => {
      frame.remove();
      reject(new Error("this chart cannot be drawn"));
    };
    const timer = setTimeout(fail, CHART_MS);
    const frame = guestFrame("", {
      title: "chart",
      head: (nonce) => `<script nonce="${nonce}">${source}</script><script nonce="${nonce}">${CHART_PROGRAM}</script>`,
      onSaid: (said) => {
        if (said?.ready) frame.contentWindow?.postMessage({ specification, dark: isDark() }, "*");
        else if (said?.failed) fail();
        else if (said?.drawn) {
          clearTimeout(timer);
          frame.classList.remove("waiting");
          resolve(undefined);
        }
      },
    });
    // It begins anew when it is moved, so it stands where it stays.
    frame.classList.add("waiting");
    place.append(frame);
  });
}

const MARKUP_PROGRAM =
  "addEventListener('message',({source,data,ports:[port]})=>{if(source!==parent)return;let html=null;" +
  "try{html=markup(data.kind,data.text)}catch{}port.postMessage(html)});parent.postMessage({ready:true},'*')";
// Formulas define macros: a short one can be gigabytes.
const MAX_HTML_CHARS = 2_000_000;

/** The frame that turns Markdown and LaTeX into HTML, for all of a page, once it is ready. @type {HTMLIFrameElement | null} */
let writer = null;
/** Texts wait for each other: what one takes is not the next one's. */
let written = Promise.resolve();

/** Markdown or LaTeX as HTML. Rejects if that fails or takes too long. @param {string} kind @param {string} text
 * @returns {Promise<string>} */
function asHtml(kind, text) {
  const html = written.then(() => write(kind, text));
  written = html.then(() => {}, () => {});
  return html;
}

/** @param {string} kind @param {string} text @returns {Promise<string>} */
async function write(kind, text) {
  const source = await library("markup"), { port1, port2 } = new MessageChannel();
  return new Promise((resolve, reject) => {
    const ask = () => writer?.contentWindow?.postMessage({ kind, text }, "*", [port2]);
    const timer = setTimeout(() => {
      writer?.remove();
      writer = null;
      reject(new Error("this text takes too long"));
    }, CHART_MS);
    port1.onmessage = ({ data }) => {
      clearTimeout(timer);
      if (typeof data === "string" && data.length <= MAX_HTML_CHARS) resolve(data);
      else reject(new Error("this text cannot be formatted"));
    };
    if (writer) {
      ask();
      return;
    }
    writer = guestFrame("", {
      title: "",
      head: (nonce) => `<script nonce="${nonce}">${source}</script><script nonce="${nonce}">${MARKUP_PROGRAM}</script>`,
      onSaid: (said) => said?.ready && ask(),
    });
    writer.hidden = true;
    document.body.append(writer);
  });
}
