// The conversation with the host: JSON-RPC over postMessage (MCP Apps, 2026-01-26). Only the parent window is heard: a frame
// in this page, which shows what a guest wrote, is never a source of messages here.

/** @typedef {{resolve: (value: any) => void, reject: (error: Error) => void}} Waiting */

const host = (() => {
  let last = 0;
  /** @type {Map<number, Waiting>} */
  const waiting = new Map();
  /** @type {Map<string, (params: any) => void>} */
  const handlers = new Map();
  const send = (/** @type {object} */ message) => window.parent.postMessage({ jsonrpc: "2.0", ...message }, "*");

  function answer(/** @type {any} */ message) {
    const known = message.method === "ping" || message.method === "ui/resource-teardown";
    send({ id: message.id, ...(known ? { result: {} } : { error: { code: -32601, message: "unknown method" } }) });
  }

  window.addEventListener("message", ({ data, source }) => {
    if (source !== window.parent || data?.jsonrpc !== "2.0") return;
    if (data.method === undefined) {
      const one = waiting.get(data.id);
      waiting.delete(data.id);
      if (data.error) one?.reject(new Error(String(data.error.message)));
      else one?.resolve(data.result);
      return;
    }
    if (data.id !== undefined) answer(data);
    handlers.get(data.method)?.(data.params ?? {});
  });

  return {
    /** @param {string} method @param {object} params @param {number} ms @returns {Promise<any>} */
    request(method, params, ms = 60_000) {
      return new Promise((resolve, reject) => {
        const id = ++last;
        const timer = setTimeout(() => {
          waiting.delete(id);
          reject(new Error("the host does not answer"));
        }, ms);
        waiting.set(id, {
          resolve: (value) => (clearTimeout(timer), resolve(value)),
          reject: (error) => (clearTimeout(timer), reject(error)),
        });
        send({ id, method, params });
      });
    },
    /** @param {string} method @param {object} params */
    notify: (method, params = {}) => send({ method, params }),
    /** @param {string} method @param {(params: any) => void} handler */
    on: (method, handler) => handlers.set(method, handler),
  };
})();

/** The first content of a resource. @param {string} uri @returns {Promise<{text?: string, blob?: string, mimeType?: string}>} */
async function readResource(uri) {
  const { contents } = await host.request("resources/read", { uri });
  return contents[0];
}

/** A resource that is JSON. @param {string} uri @returns {Promise<any>} */
async function readJson(uri) {
  return JSON.parse((await readResource(uri)).text ?? "");
}

/** Offer a file for download. @param {string} name @param {string | undefined} mimeType @param {{text?: string, blob?: string}} content */
function saveFile(name, mimeType, content) {
  const resource = { uri: `file:///${encodeURIComponent(name)}`, mimeType, ...content };
  return host.request("ui/download-file", { contents: [{ type: "resource", resource }] }).catch(() => undefined);
}
