// Cells: evaluated in the realm, waited for, interrupted; what they leave behind goes on between them.
import { translate } from "./cells.mjs";
import { Thrown } from "./realm.mjs";

const MAX_RESULT_CHARS = 1024 * 1024;
const MAX_NAME_CHARS = 1000;
const NAME = /[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)*\.?$/;
/** Lines of a stack that are nothing that a cell has written. */
const OURS = /\((?:node:|user_expressions:)/;
/** In such a line: of a module that was loaded anew. */
const VERSION = /(\(\/.*)\?\d+(:\d+:\d+\))$/;
const NEVER = "what the cell awaits never comes: no timer runs and no request is under way";

/** @typedef {import("quickjs-emscripten-core").QuickJSHandle} Handle */
/** @typedef {(type: string, content: object) => void} Send */

export class Interpreter {
  /** @param {import("./realm.mjs").Realm} realm @param {{hasTimers: () => boolean, stopTimers: () => void,
   * complain: (text: string) => void}} services */
  constructor(realm, services) {
    this.realm = realm;
    this.services = services;
    /** @type {(() => void) | undefined} */
    this.wake = undefined;
    /** What runs is to end: once it is true, until the next cell. */
    this.isEnding = false;
  }

  /** @param {{code: string, execution_count: number, silent: boolean, user_expressions?: Record<string, string>}} content
   * @param {Send} send @returns {Promise<object>} the reply */
  async execute({ code, execution_count: count, silent, user_expressions: asked = {} }, send) {
    this.isEnding = false;
    this.realm.engine.begin();
    try {
      this.tell("begin");
      const text = await this.#shown(code, `cell ${count}`);
      if (text && !silent) {
        send("execute_result", { execution_count: count, data: { "text/plain": text }, metadata: {} });
      }
      const pairs = [];
      for (const [name, expression] of Object.entries(asked)) pairs.push([name, await this.#userExpression(expression)]);
      return { status: "ok", execution_count: count, user_expressions: Object.fromEntries(pairs) };
    } catch (error) {
      const fault = this.#describe(error);
      // What goes on and on would do so in the next cell, before it begins.
      if (this.isEnding) {
        this.realm.runJobs();
        this.realm.engine.granted(() => this.tell("giveUp"));
      }
      if (!silent) send("error", fault);
      return { status: "error", execution_count: count, ...fault };
    } finally {
      this.realm.engine.end();
    }
  }

  /** A timer is due. @param {number} number */
  fire(number) {
    try {
      this.realm.call("fire", number);
    } catch (error) {
      if (!this.isEnding) this.complain(error, "Uncaught");
    }
    this.turn();
  }

  /** Nobody gets the error. @param {unknown} error @param {string} how */
  complain(error, how) {
    this.services.complain(`${how} ${this.#describe(error).traceback.join("\n")}\n`);
  }

  /** Nothing will happen by itself. */
  isIdle() {
    return this.realm.underWay === 0 && !this.services.hasTimers();
  }

  /** Something has happened: what waits for it goes on. */
  turn() {
    this.realm.runJobs();
    if (this.wake) this.wake();
    else if (!this.realm.underWay) this.isEnding = false; // it was what an earlier cell has left behind
  }

  /** End what is awaited. */
  interrupt() {
    this.isEnding = true;
    this.wake?.();
  }

  /** What earlier cells have left running is to end. */
  endBackground() {
    this.services.stopTimers();
    this.tell("stopAll");
    this.tell("giveUp");
  }

  /** Call what nobody waits for. A cell that has broken it has done so for itself. @param {string} name @param {string[]} values */
  tell(name, ...values) {
    try {
      this.realm.call(name, ...values);
    } catch (error) {
      faultOf(error);
    }
  }

  /** @param {{code: string, cursor_pos: number}} content */
  complete({ code, cursor_pos: at }) {
    const text = NAME.exec([...code].slice(Math.max(0, at - MAX_NAME_CHARS), at).join(""))?.[0] ?? "";
    const found = JSON.parse(this.realm.call("complete", text));
    const start = at - [...(text.split(".").at(-1) ?? "")].length;
    return { status: "ok", matches: found, cursor_start: start, cursor_end: at, metadata: {} };
  }

  /** @param {{code: string, cursor_pos: number, offset: number}} content */
  inspect({ code, cursor_pos: at }) {
    const points = [...code];
    let end = at;
    while (end < points.length && /[\w$]/.test(points[end])) end += 1;
    const name = NAME.exec(points.slice(Math.max(0, end - MAX_NAME_CHARS), end).join(""))?.[0];
    const text = name && !name.endsWith(".") ? this.realm.call("describe", name) : "";
    return { status: "ok", found: text !== "", data: text ? { "text/plain": text } : {}, metadata: {} };
  }

  /** @param {string} expression */
  async #userExpression(expression) {
    try {
      const text = await this.#shown(expression, "user_expressions", "whole");
      return { status: "ok", data: { "text/plain": text }, metadata: {} };
    } catch (error) {
      return { status: "error", ...this.#describe(error) };
    }
  }

  /** A cell's result as text; empty when it has none. @param {string} code @param {string} name
   * @param {"inspect" | "whole"} how */
  async #shown(code, name, how = "inspect") {
    const script = translate(code);
    const value = await this.#value(script, name);
    try {
      if (!script.hasResult || this.realm.context.typeof(value) === "undefined") return "";
      return this.realm.call(how, value).slice(0, MAX_RESULT_CHARS);
    } finally {
      value.dispose();
    }
  }

  /** @param {import("./cells.mjs").Script} script @param {string} name @returns {Promise<Handle>} */
  async #value(script, name) {
    if (script.functions) this.realm.evaluate(script.functions, name).dispose();
    const value = await this.#awaited(this.realm.evaluate(script.text, name));
    if (!script.waits || !script.hasResult) return value;
    // In an object, so that a promise is not awaited by the function that gives it.
    const inner = this.realm.context.getProp(value, "value");
    value.dispose();
    return this.#awaited(inner);
  }

  /** The value, or what a promise becomes. Timers and answers go on meanwhile. @param {Handle} value disposed of here, if it
   * is not what is returned @returns {Promise<Handle>} */
  async #awaited(value) {
    if (!this.realm.isPromise(value)) {
      this.realm.runJobs();
      return value;
    }
    try {
      for (;;) {
        this.realm.runJobs();
        if (this.isEnding) throw new Thrown({ name: "KeyboardInterrupt", message: "", stack: "" });
        const found = this.realm.settled(value);
        if (found !== undefined) return found;
        if (this.isIdle()) {
          this.tell("giveUp");
          throw new Thrown({ name: "Error", message: NEVER, stack: "" });
        }
        await new Promise((resolve) => (this.wake = () => resolve(undefined)));
        this.wake = undefined;
      }
    } finally {
      value.dispose();
    }
  }

  /** @param {unknown} error */
  #describe(error) {
    const { name, message, stack } = faultOf(error);
    const ename = this.isEnding ? "KeyboardInterrupt" : name;
    const evalue = this.isEnding ? "" : message;
    const lines = stack.split("\n").filter((line) => line.trim() && !OURS.test(line)).map((line) => line.replace(VERSION, "$1$2"));
    return { ename, evalue, traceback: [evalue ? `${ename}: ${evalue}` : ename, ...lines] };
  }
}

/** @param {unknown} error @returns {import("./realm.mjs").Fault} */
function faultOf(error) {
  if (error instanceof Thrown) return error.fault;
  if (error instanceof SyntaxError) {
    const { line, column } = /** @type {any} */ (error).loc ?? {};
    const where = line ? ` (line ${line}, column ${column + 1})` : "";
    return { name: "SyntaxError", message: error.message.replace(/ \(\d+:\d+\)$/, "") + where, stack: "" };
  }
  // A bound: of Node's stack in code that is nested deeply, of what may cross, of memory.
  const { name, message } = /** @type {Error} */ (error);
  if (error instanceof RangeError || name === "InternalError") return { name, message, stack: "" };
  throw error;
}
