// Turns Markdown and LaTeX into HTML, formulas into MathML, which browsers draw without fonts or styles of ours.

(() => {
  const { katex, marked } = globalThis;
  // As in Jupyter: dollars, backslashes with brackets, and environments outside of them.
  const DISPLAYED = [
    String.raw`\$\$([^$]{1,4999})\$\$`,
    String.raw`\\\\?\[([^]{1,4999}?)\\\\?\]`,
    String.raw`(\\begin\{([a-z]{1,20}\*?)\}[^]{1,4999}?\\end\{\4\})`,
  ].join("|");
  const INLINE = [String.raw`\$(?![\s$])((?:[^$\\\n]|\\[^\n]){1,4999})(?<!\s)\$(?!\d)`, String.raw`\\\\?\(([^]{1,4999}?)\\\\?\)`].join("|");
  const MATH = `${DISPLAYED}|${INLINE}`;
  const options = { output: "mathml", throwOnError: false, strict: "ignore", maxSize: 30 };
  // One that defines macros can make gigabytes of them; others need a few for each operator.
  const DEFINES = /\\(?:[egx]?def|(?:re)?newcommand|providecommand|let|futurelet)(?![a-zA-Z])/;
  // Of all formulas of a text: they can define macros, so a short one can be gigabytes.
  const MAX_HTML_CHARS = 2_000_000;
  let room = 0;

  /** @param {RegExpMatchArray} found */
  const formula = ([, dollars, brackets, environment, , inline, round]) => {
    const displayMode = inline === undefined && round === undefined;
    const text = dollars ?? brackets ?? environment ?? inline ?? round ?? "";
    const html = katex.renderToString(text, { ...options, displayMode, maxExpand: DEFINES.test(text) ? 50 : 2000 });
    if ((room -= html.length) < 0) throw new Error("the formulas are too large");
    return html;
  };

  const escaped = (/** @type {string} */ text) =>
    text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

  /** @param {string} name @param {RegExp} begins @param {RegExp} nearby @param {(html: string) => string} renderer */
  const math = (name, begins, nearby, renderer) => ({
    name: `${name} formula`,
    level: name,
    start: (/** @type {string} */ text) => text.search(nearby),
    tokenizer(/** @type {string} */ text) {
      const found = text.match(begins);
      return found ? { type: `${name} formula`, raw: found[0], html: formula(found) } : undefined;
    },
    renderer: (/** @type {{html: string}} */ { html }) => renderer(html),
  });
  const extensions = [
    math("block", new RegExp(`^ {0,3}(?:${DISPLAYED})[ \\t]*(?:\\n+|$)`), /\n {0,3}(?:\$\$|\\\\?\[|\\begin\{)/, (html) => `<p>${html}</p>`),
    math("inline", new RegExp(`^(?:${MATH})`), /\$(?![\s$])|\$\$(?!\$)|\\\\?[([]|\\begin\{/, (html) => html),
  ];
  const markdown = new marked.Marked({ gfm: true, extensions });

  const latex = (/** @type {string} */ text) => {
    let html = "", end = 0;
    for (const found of text.matchAll(new RegExp(MATH, "g"))) {
      html += escaped(text.slice(end, found.index)) + formula(found);
      end = found.index + found[0].length;
    }
    return html + escaped(text.slice(end));
  };

  const GREY = "rgba(128,128,128,.4)";
  const STYLE =
    "<style>h1{font-size:1.6em}h2{font-size:1.35em}h3{font-size:1.15em}h1,h2,h3,h4{margin:.6em 0 .4em}p{margin:.6em 0}" +
    "code{font-family:ui-monospace,monospace}pre,:not(pre)>code{background:rgba(128,128,128,.12)}pre{padding:6px 8px;overflow:auto}" +
    `td,th{border:1px solid ${GREY}}blockquote{margin-left:0;padding-left:10px;border-left:3px solid ${GREY}}math{font-size:1.15em}</style>`;

  globalThis.markup = (/** @type {string} */ kind, /** @type {string} */ text) => {
    room = MAX_HTML_CHARS;
    return STYLE + (kind === "text/latex" ? latex(text) : markdown.parse(text));
  };
})();
