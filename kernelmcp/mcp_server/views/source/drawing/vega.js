// Draws a Vega-Lite chart in its frame: without eval, by Vega's interpreter, and without loading anything.

/** @param {HTMLElement} place @param {any} specification @param {boolean} dark */
globalThis.show = async (place, specification, dark) => {
  const { vega, vegaLite, expressionInterpreter } = globalThis;
  // Vega goes on after an error in its dataflow, or without data, and draws an empty chart.
  /** @type {unknown} */
  let failure;
  const fail = (/** @type {unknown} */ error) => void (failure ??= error);
  const refuse = () => Promise.reject(new Error("nothing is loaded"));
  const load = () => (fail("nothing is loaded"), refuse());
  const colours = { labelColor: "#ccc", titleColor: "#ccc", gridColor: "#444" };
  const config = dark ? { background: "transparent", axis: colours, legend: colours, title: { color: "#ddd" } } : {};
  const logger = Object.assign(vega.logger(vega.None), { error: fail });
  const { spec } = vegaLite.compile(specification, { config, logger });
  const loader = { load, sanitize: refuse, http: refuse, file: refuse };
  const container = place.appendChild(document.createElement("div"));
  const options = { expr: expressionInterpreter, renderer: "svg", container, hover: true, loader, logger };
  await new vega.View(vega.parse(spec, null, { ast: true }), options).runAsync();
  if (failure) throw failure;
};
