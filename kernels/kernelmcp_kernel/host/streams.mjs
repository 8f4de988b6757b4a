// Sends what the guest prints: each line at once, as long as they are few, so that none is lost when the guest is killed in
// code that never lets the event loop run. A flood is collected, because a frame for each line would cost more than the print.

const MAX_CHARS = 64 * 1024;
const DELAY_MS = 40;
const LINES_AT_ONCE = 50; // in DELAY_MS

export class Streams {
  /** @param {(text: string) => void} emit */
  constructor(emit) {
    this.emit = emit;
    /** @type {string[]} */
    this.pieces = [];
    this.chars = 0;
    this.name = "";
    this.id = "";
    this.flushedAt = 0;
    this.windowStart = 0;
    this.linesInWindow = 0;
    /** @type {NodeJS.Timeout | undefined} */
    this.timer = undefined;
  }

  /** @param {string} name stdout or stderr @param {string} text @param {string} id the request it belongs to */
  write(name, text, id) {
    if (name !== this.name || id !== this.id) {
      this.flush();
      this.name = name;
      this.id = id;
    }
    this.pieces.push(text);
    this.chars += text.length;
    if (this.chars >= MAX_CHARS || (text.endsWith("\n") && this.#mayLine())) this.flush();
    else this.timer ??= setTimeout(() => this.flush(), DELAY_MS); // for a guest that waits; a busy one is `tick`ed
  }

  #mayLine() {
    const now = performance.now();
    if (now - this.windowStart > DELAY_MS) {
      this.windowStart = now;
      this.linesInWindow = 0;
    }
    return ++this.linesInWindow <= LINES_AT_ONCE;
  }

  /** Called often while the guest computes: send what has waited long enough. */
  tick() {
    if (this.chars && performance.now() - this.flushedAt > DELAY_MS) this.flush();
  }

  /** Send everything now; done before any other frame, so that the order of outputs is the order of the program. */
  flush() {
    clearTimeout(this.timer);
    this.timer = undefined;
    if (!this.chars) return;
    const text = this.pieces.length === 1 ? this.pieces[0] : this.pieces.join("");
    this.pieces = [];
    this.chars = 0;
    this.flushedAt = performance.now();
    for (let start = 0; start < text.length; ) {
      let end = Math.min(start + MAX_CHARS, text.length);
      if (end < text.length && /[\uD800-\uDBFF]/.test(text[end - 1])) end += 1; // never between the halves of a character
      const content = { name: this.name, text: text.slice(start, end) };
      this.emit(JSON.stringify({ type: "stream", id: this.id, content }));
      start = end;
    }
  }
}
