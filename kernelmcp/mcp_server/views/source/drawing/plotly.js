// Draws a plotly figure in its frame, with a configuration of our own.

/** @param {HTMLElement} place @param {any} specification @param {boolean} dark */
globalThis.show = async (place, { data, layout }, dark) => {
  const colours = dark ? { paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: "#ccc" } } : {};
  const node = place.appendChild(document.createElement("div"));
  const config = { displaylogo: false, responsive: true, showLink: false, showSendToCloud: false, sendData: false };
  await globalThis.Plotly.newPlot(node, data, { ...layout, ...colours }, config);
};
