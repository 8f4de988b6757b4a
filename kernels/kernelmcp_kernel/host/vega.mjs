// Draws charts of altair, which are Vega-Lite specifications, as SVG. The first chart loads Vega.
import fs from "node:fs";
import path from "node:path";
import process from "node:process";
import vm from "node:vm";

/** @typedef {{vega: any, vegaLite: any, interpreter: any}} Libraries */

/** @param {string} runtime the folder that holds vega/ @returns {(specification: string) => string} Throws an error whose
 * message says why there is no picture. */
export function chartDrawer(runtime) {
  /** @type {Libraries | undefined} */
  let libraries;
  return (specification) => draw((libraries ??= load(path.join(runtime, "vega", "node_modules"))), JSON.parse(specification));
}

/** @param {string} folder @returns {Libraries} */
function load(folder) {
  const vega = loadBundle(path.join(folder, "vega", "build", "vega.min.js"), {});
  const vegaLite = loadBundle(path.join(folder, "vega-lite", "build", "vega-lite.min.js"), { vega });
  // V8 makes no code from strings in a guest, so expressions are interpreted.
  const { createRequire } = process.getBuiltinModule("node:module"); // few sessions need it
  const { expressionInterpreter: interpreter } = createRequire(path.join(folder, "any"))("vega-interpreter");
  return { vega, vegaLite, interpreter };
}

/** Load a script of CommonJS: Node would resolve what it requires to other packages. @param {string} file
 * @param {Record<string, any>} modules */
function loadBundle(file, modules) {
  const exports = {};
  const parameters = ["exports", "module", "require"];
  const script = vm.compileFunction(fs.readFileSync(file, "utf8"), parameters, { filename: file });
  script(exports, { exports }, (/** @type {string} */ name) => modules[name]);
  return /** @type {any} */ (exports);
}

/** As view.toSVG() does, but without a promise: a chart may be shown where Python cannot wait. @param {Libraries} libraries
 * @param {any} specification */
function draw({ vega, vegaLite, interpreter }, specification) {
  let elsewhere = "";
  const refuse = async () => {
    throw new Error("nothing is loaded");
  };
  const loader = {
    load() {
      elsewhere = "data that are not in the chart";
      return refuse();
    },
    sanitize(/** @type {string} */ address, /** @type {{context?: string}} */ options) {
      if (options?.context === "image") elsewhere = "images that are not in the chart";
      return refuse();
    },
  };
  const logger = vega.logger(vega.None);
  const { spec } = vegaLite.compile(specification, { logger });
  const view = new vega.View(vega.parse(spec, null, { ast: true }), { expr: interpreter, loader, logger, renderer: "none" });
  try {
    view.run();
    const { left, right, top, bottom } = view.padding();
    const [x, y] = view.origin();
    const size = [view._viewWidth + left + right, view._viewHeight + top + bottom];
    const renderer = new vega.SVGStringRenderer(loader).initialize(null, ...size, [left + x, top + y]);
    const svg = renderer.background(view.background()).render(view.scenegraph().root).svg();
    if (elsewhere) throw new Error(elsewhere);
    return svg;
  } finally {
    view.finalize(); // a chart may have timers
  }
}
