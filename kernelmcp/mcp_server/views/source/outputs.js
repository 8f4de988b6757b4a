// The outputs of a cell in their order, each as a node.

/** `display` is its number, `best` the type to show, and `still` the one to show until that is drawn.
 * @typedef {{stream?: string, text?: string, cut?: boolean, display?: number, best?: string, still?: string,
 *   data?: Record<string, any>}} Part */
/** @typedef {{execution_id: string, session_id: string, execution_count: number | null, status: string, waits: boolean,
 *   time_ms: number, cursor: string, since: string, parts: Part[], displays: number, dropped: number, chars_dropped: number, lost: boolean,
 *   restored: boolean,
 *   error: {name: string, value: string, traceback: string} | null, files: {path: string, size: number, uri: string}[]}} Page */

// Of a stream that goes on, the newest text is kept.
const MAX_TEXT_CHARS = 200_000;
const LEFT_OUT = "[earlier output is left out here]\n";
// Longer Markdown is shown as it was written.
const MAX_MARKUP_CHARS = 100_000;
const MARKUP = new Map([["text/markdown", "Markdown"], ["text/latex", "LaTeX"]]);
const PICTURE = /^image\/(?:png|jpeg|gif|webp|svg\+xml)$/;

/** @param {string} text @param {string} kind */
function textNode(text, kind = "") {
  const node = make("pre", { class: kind, tabindex: "0" });
  node.append(terminalText(text));
  return node;
}

/** Its address. Pictures in `img` neither run scripts nor load anything. @param {string} kind @param {string} data */
const pictureUrl = (kind, data) =>
  kind === "image/svg+xml" ? `data:${kind};charset=utf-8,${encodeURIComponent(data)}` : `data:${kind};base64,${data.replace(/\s/g, "")}`;

/** @param {string} kind @param {string} data @param {boolean} canSave */
function pictureNode(kind, data, canSave) {
  const image = /** @type {HTMLImageElement} */ (make("img", { src: pictureUrl(kind, data), alt: "picture that the cell displayed" }));
  image.addEventListener("load", () => document.dispatchEvent(new Event("resized")));
  const figure = make("figure");
  const zoom = make("button", { class: "zoom", type: "button", title: "actual size" }, image);
  zoom.addEventListener("click", () => {
    figure.classList.toggle("large");
    document.dispatchEvent(new Event("resized"));
  });
  const copy = linkButton("copy", async () => {
    copy.textContent = (await copyPicture(image)) ? "copied" : "not allowed here";
  });
  const suffix = kind === "image/svg+xml" ? "svg" : kind.slice("image/".length);
  const content = kind === "image/svg+xml" ? { text: data } : { blob: data.replace(/\s/g, "") };
  const save = linkButton("save", () => void saveFile(`picture.${suffix}`, kind, content));
  figure.append(zoom, make("div", { class: "tools" }, copy, ...(canSave ? [save] : [])));
  return figure;
}

/** Copy a picture as PNG, the only type that clipboards take. @param {HTMLImageElement} image */
async function copyPicture(image) {
  try {
    const canvas = /** @type {HTMLCanvasElement} */ (make("canvas", { width: String(image.naturalWidth), height: String(image.naturalHeight) }));
    canvas.getContext("2d")?.drawImage(image, 0, 0);
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
    await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
    return true;
  } catch {
    return false;
  }
}

/** The nodes of one cell. `canSave`: the host lets the person download files. */
class Outputs {
  /** @param {HTMLElement} root @param {() => boolean} canSave */
  constructor(root, canSave) {
    this._root = root;
    this._canSave = canSave;
    /** @type {Map<number, HTMLElement>} */
    this._displays = new Map();
    /** @type {{node: HTMLElement, stream: string, raw: string} | null} */
    this._run = null;
    this._error = make("div");
    this._notes = make("div");
  }

  get isEmpty() {
    return !this._root.hasChildNodes() || (this._root.childNodes.length === 2 && !this._error.hasChildNodes() && !this._notes.hasChildNodes());
  }

  /** True if a frame in it took its colours from the theme. */
  get hasFrames() {
    return this._root.querySelector("iframe") !== null;
  }

  /** Show a page: all outputs, or those that are new. @param {Page} page */
  show(page) {
    if (page.since === "") this.clear();
    for (const part of page.parts) {
      if (part.stream !== undefined) this._addText(part.stream, part.text ?? "", part.cut === true);
      else this._addDisplay(part, page.execution_id);
    }
    const { error } = page;
    this._error.replaceChildren(...(error && page.status !== "running" ? [errorNode(error)] : []));
    const left = page.displays - this._displays.size + page.dropped, lost = page.chars_dropped;
    const words = [
      ...(left ? [`${left.toLocaleString()} more object${left === 1 ? " is" : "s are"} not shown.`] : []),
      ...(lost ? [`${lost.toLocaleString()} character${lost === 1 ? " of text was" : "s of text were"} not kept.`] : []),
    ];
    this._notes.replaceChildren(...words.map((each) => make("p", { class: "note" }, each)));
    this._root.append(this._error, this._notes);
  }

  clear() {
    this._root.replaceChildren();
    this._displays.clear();
    this._run = null;
    this._notes.replaceChildren();
  }

  /** What a result itself has. @param {any[]} content @param {boolean} isError */
  showContent(content, isError) {
    this.clear();
    for (const block of content) {
      if (block.type === "text" && block.text !== "(no output)") this._root.append(textNode(String(block.text), isError ? "stderr" : ""));
      else if (block.type === "image") this._root.append(pictureNode(String(block.mimeType), String(block.data), this._canSave()));
    }
  }

  /** @param {string} stream @param {string} text @param {boolean} isCut */
  _addText(stream, text, isCut) {
    if (this._run?.stream !== stream) {
      this._run = { node: textNode("", stream), stream, raw: "" };
      this._root.insertBefore(this._run.node, this._error.isConnected ? this._error : null);
    }
    const run = this._run, grown = run.raw + (isCut ? LEFT_OUT : "") + text;
    run.raw = grown.length > MAX_TEXT_CHARS ? LEFT_OUT + grown.slice(LEFT_OUT.length - MAX_TEXT_CHARS) : grown;
    run.node.replaceChildren(terminalText(run.raw.replace(/\n$/, "")));
    run.node.scrollTop = run.node.scrollHeight;
  }

  /** @param {Part} part @param {string} executionId */
  _addDisplay(part, executionId) {
    const number = part.display ?? 0, place = make("div");
    const earlier = this._displays.get(number);
    if (earlier) earlier.replaceWith(place);
    else {
      this._root.insertBefore(place, this._error.isConnected ? this._error : null);
      this._run = null;
    }
    this._displays.set(number, place);
    this._draw(part, executionId, place).then(
      () => document.dispatchEvent(new Event("resized")),
      () => place.replaceChildren(textNode(asText(part.data?.["text/plain"] ?? "[this output cannot be shown]"))),
    );
  }

  /** @param {Part} part @param {string} executionId @param {HTMLElement} place */
  async _draw(part, executionId, place) {
    const { best = "", still = "", data = {} } = part;
    const whole = async (/** @type {string} */ kind) =>
      kind in data ? data[kind] : readJson(`kernelmcp://executions/${executionId}/raw?n=${part.display}&type=${encodeURIComponent(kind)}`);
    if (best.includes("vegalite") || best.includes("plotly")) {
      place.className = "chart";
      const early = still && still in data ? this._simple(still, data[still]) : textNode(asText(data["text/plain"] ?? "a chart"));
      place.append(early);
      const specification = await whole(best);
      drawChart(best.includes("plotly") ? "plotly" : "vega", specification, place).then(
        () => {
          early.remove();
          document.dispatchEvent(new Event("resized"));
          performance.mark("chart");
        },
        () => {}, // its picture, or its text, stays
      );
      return;
    }
    const value = best ? await whole(best) : "", written = MARKUP.get(best);
    place.append(this._simple(best, value));
    if (written !== undefined && asText(value).length <= MAX_MARKUP_CHARS) {
      asHtml(best, asText(value)).then(
        (html) => {
          place.replaceChildren(guestHtml(html, written));
          document.dispatchEvent(new Event("resized"));
        },
        () => {}, // its text stays
      );
    }
  }

  /** @param {string} kind @param {any} value @returns {HTMLElement} */
  _simple(kind, value) {
    if (PICTURE.test(kind)) return pictureNode(kind, asText(value), this._canSave());
    if (kind.includes("dataresource")) return grid(tableOfSchema(value), this._canSave());
    if (kind === "text/html") {
      const table = tableOfHtml(asText(value));
      return table ? grid(table, this._canSave()) : guestHtml(asText(value));
    }
    return textNode(typeof value === "object" && !Array.isArray(value) ? JSON.stringify(value, null, 2) : asText(value));
  }
}

/** @param {any} value */
const asText = (value) => (Array.isArray(value) ? value.join("") : String(value));

/** @param {{name: string, value: string, traceback: string}} error */
function errorNode(error) {
  const line = `${error.name}: ${(error.value.split("\n")[0] ?? "").slice(0, 300)}`;
  const folded = make("details", {}, make("summary", {}, line), textNode(error.traceback || error.value));
  folded.addEventListener("toggle", () => document.dispatchEvent(new Event("resized")));
  return folded;
}
