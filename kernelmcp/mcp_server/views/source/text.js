// Text as a terminal shows it: colours, and overwritten lines; every other escape sequence is left out. It makes nodes, never
// HTML.

/** @param {string} name @param {Record<string, any>} attributes @param {(Node | string)[]} children @returns {HTMLElement} */
function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") node.addEventListener("click", value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

/** @param {string} words @param {(event: MouseEvent) => void} onclick @param {string} title */
const linkButton = (words, onclick, title = "") => make("button", { class: "link", type: "button", onclick, title }, words);

/** @type {(text: string) => DocumentFragment} */
const terminalText = (() => {
  const BASE = [
    ...["#3b3b3b", "#c4342b", "#2e8b3d", "#a97900", "#3567c7", "#a2409e", "#1c8a94", "#8a8a8a"],
    ...["#6f6f6f", "#e5534b", "#46b35a", "#d3a017", "#5b8def", "#cc6bc8", "#39b1bd", "#c9c9c9"],
  ];
  const OTHER_ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?|[\x00-\x08\x0b-\x1f\x7f]/g;
  /** @typedef {Record<string, string>} Style */
  /** @type {Record<number, (style: Style) => void>} */
  const PLAIN = {
    1: (style) => (style["font-weight"] = "bold"),
    2: (style) => (style["opacity"] = ".7"),
    3: (style) => (style["font-style"] = "italic"),
    4: (style) => (style["text-decoration"] = "underline"),
    9: (style) => (style["text-decoration"] = "line-through"),
    22: (style) => (delete style["font-weight"], delete style["opacity"]),
    23: (style) => delete style["font-style"],
    24: (style) => delete style["text-decoration"],
    29: (style) => delete style["text-decoration"],
    39: (style) => delete style["color"],
    49: (style) => delete style["background"],
  };

  /** A colour of the 256. @param {number} number */
  function of256(number) {
    if (number < 16) return /** @type {string} */ (BASE[number]);
    if (number > 231) return `rgb(${Array(3).fill(8 + 10 * (number - 232))})`;
    const steps = [Math.floor((number - 16) / 36), Math.floor((number - 16) / 6) % 6, (number - 16) % 6];
    return `rgb(${steps.map((step) => step && 55 + 40 * step)})`;
  }

  /** The colour after a 38 or 48. @param {number[]} codes */
  function longColour(codes) {
    const byte = () => Math.min(255, Math.max(0, codes.shift() || 0));
    const kind = codes.shift();
    if (kind === 5) return of256(byte());
    return kind === 2 ? `rgb(${[byte(), byte(), byte()]})` : "";
  }

  /** @param {number[]} codes @param {Style} style */
  function apply(codes, style) {
    while (codes.length) {
      const code = /** @type {number} */ (codes.shift());
      const place = code % 60 >= 40 && code % 60 < 48 ? "background" : "color";
      if (code === 0) for (const key of Object.keys(style)) delete style[key];
      else if (code === 38 || code === 48) style[code === 38 ? "color" : "background"] = longColour(codes);
      else if ((code >= 30 && code < 38) || (code >= 40 && code < 48)) style[place] = /** @type {string} */ (BASE[code % 10]);
      else if ((code >= 90 && code < 98) || (code >= 100 && code < 108)) style[code < 100 ? "color" : "background"] = /** @type {string} */ (BASE[8 + (code % 10)]);
      else PLAIN[code]?.(style);
    }
  }

  /** Each line as its carriage returns leave it. @param {string} text */
  function overwritten(text) {
    if (!text.includes("\r")) return text;
    const isSeen = (/** @type {string} */ state) => state.replace(OTHER_ESCAPES, "") !== "";
    const last = (/** @type {string} */ line) => {
      const states = line.split("\r");
      return states.slice(Math.max(0, states.findLastIndex(isSeen))).join(""); // with the escapes after it
    };
    return text.replace(/\r+\n/g, "\n").split("\n").map((line) => (line.includes("\r") ? last(line) : line)).join("\n");
  }

  return (text) => {
    const nodes = document.createDocumentFragment();
    /** @type {Style} */
    const style = {};
    for (const piece of overwritten(text).split(/(\x1b\[[0-9;]*m)/)) {
      if (piece.startsWith("\x1b[") && piece.endsWith("m")) {
        apply(piece.slice(2, -1).split(";").map(Number), style);
      } else if (piece) {
        const shown = piece.replace(OTHER_ESCAPES, "");
        const span = document.createElement("span");
        for (const [key, value] of Object.entries(style)) span.style.setProperty(key, value);
        span.textContent = shown;
        nodes.append(Object.keys(style).length ? span : shown);
      }
    }
    return nodes;
  };
})();
