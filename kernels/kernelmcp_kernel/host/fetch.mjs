// `fetch` of the guest: a host call to the kernel process, which decides. Node's own classes make requests and responses.
// Convenience, never a boundary: code that goes around it finds that this process has no sockets.

// Calls of one guest that may be under way; the kernel process refuses more than some dozens, so the rest wait here.
const MAX_AT_ONCE = 4;
const REDIRECTS = new Set([301, 302, 303, 307, 308]);
const NO_BODY = new Set([204, 205, 304]);

/** @typedef {{status: number, reason: string, headers: [string, string][], body: string, url: string, redirected: boolean}} Answer */

/** @param {(text: string) => Promise<string>} ask makes a host call @returns {typeof globalThis.fetch} */
export function makeFetch(ask) {
  const next = makeQueue(MAX_AT_ONCE);

  /** @param {any} input @param {any} [init] */
  return async function fetch(input, init) {
    const request = new Request(input, init);
    request.signal.throwIfAborted();
    const text = JSON.stringify({
      call: "fetch",
      method: request.method,
      url: request.url,
      headers: [...request.headers],
      body: request.body ? Buffer.from(await request.arrayBuffer()).toString("base64") : null,
      follow: request.redirect === "follow",
    });
    const answer = JSON.parse(await unlessAborted(request.signal, next(() => ask(text)).catch(fail)));
    if (request.redirect === "error" && REDIRECTS.has(answer.status)) throw new TypeError("the server redirects");
    return makeResponse(answer);
  };
}

/** @param {Error} error @returns {never} */
function fail(error) {
  throw new TypeError(error.message);
}

/** @param {Answer} answer */
function makeResponse(answer) {
  const body = NO_BODY.has(answer.status) ? null : Buffer.from(answer.body, "base64");
  const response = new Response(body, { status: answer.status, statusText: answer.reason, headers: answer.headers });
  Object.defineProperties(response, { url: { value: answer.url }, redirected: { value: answer.redirected } });
  return response;
}

/** @template T @param {AbortSignal} signal @param {Promise<T>} promise @returns {Promise<T>} */
function unlessAborted(signal, promise) {
  return new Promise((resolve, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    promise.then(resolve, reject);
  });
}

/** Start at most `limit` at a time, the others in their order. @param {number} limit */
function makeQueue(limit) {
  let running = 0;
  /** @type {(() => void)[]} */
  const waiting = [];
  const done = () => {
    running -= 1;
    waiting.shift()?.();
  };
  /** @param {() => Promise<string>} start @returns {Promise<string>} */
  return async (start) => {
    if (running >= limit) await new Promise((resolve) => waiting.push(() => resolve(undefined)));
    running += 1;
    return start().finally(done);
  };
}
