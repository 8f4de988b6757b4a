// What a cell may be that a script may not: its declarations can be made again and are there in the next cell, it may await
// and import, and its last expression is its result. The text is changed in place, so that lines and most columns of an
// error are those of the cell.
import { parse } from "acorn";

/** @typedef {{start: number, end: number, type: string, [key: string]: any}} Node */
/** @typedef {{functions: string, text: string, waits: boolean, hasResult: boolean}} Script what to evaluate: `functions`
 * first, unless it is empty; then `text`, which gives a promise of `{value}` when it `waits`, else the value itself, which
 * counts only when the cell `hasResult` */

/** @type {import("acorn").Options} */
const OPTIONS = {
  ecmaVersion: "latest",
  allowAwaitOutsideFunction: true,
  allowImportExportEverywhere: true,
  allowHashBang: true,
};

// Read as a whole in Node, which needs a hundred times as much memory for that.
const MAX_CODE_CHARS = 1024 * 1024;

/** @param {string} code @returns {Script} Throws SyntaxError, with `pos` and `loc`. */
export function translate(code) {
  if (code.length > MAX_CODE_CHARS) {
    throw new RangeError(`a cell has at most ${MAX_CODE_CHARS / 1024} KiB: put data into a file of the workspace and read it`);
  }
  /** @type {Node[]} */
  const statements = parse(code, OPTIONS).body;
  const edits = new Edits(code);
  if (code.startsWith("#!")) edits.replace(0, 2, "//");
  const waits = statements.some((statement) => statement.type === "ImportDeclaration" || awaits(statement));
  const isStrict = statements.some(({ directive }) => directive === "use strict");
  const last = statements.at(-1);
  const hasResult = last?.type === "ExpressionStatement";
  /** @type {Set<string>} */
  const names = new Set();
  for (const statement of statements) {
    if (waits) inFunction(statement, edits, names, isStrict);
    else inScript(statement, edits);
  }
  for (const statement of statements) watch(statement, edits, statement === last);
  if (!waits) return { functions: "", text: edits.text(), waits, hasResult };
  if (hasResult) {
    edits.insert(last.expression.start, "return { value: (", last.start);
    edits.replace(last.expression.end, last.end, ") };");
  }
  const declared = names.size ? `var ${[...names].join(", ")}; ` : "";
  const text = `${declared}(async () => { ${edits.text()}\n})()`;
  return { functions: functionsOf(statements, code), text, waits, hasResult };
}

/** Whether more lines may make a cell of it. @param {string} code @returns {"complete" | "incomplete" | "invalid"} */
export function completeness(code) {
  if (code.length > MAX_CODE_CHARS) return "complete";
  try {
    parse(code, OPTIONS);
    return "complete";
  } catch (error) {
    const { pos, message } = /** @type {any} */ (error);
    return pos >= code.trimEnd().length || /^Unterminated (comment|template)/.test(message) ? "incomplete" : "invalid";
  }
}

/** Replacements, of which none overlap. */
class Edits {
  /** @param {string} code */
  constructor(code) {
    this.code = code;
    /** @type {{start: number, end: number, text: string}[]} */
    this.all = [];
  }

  /** @param {number} start @param {number} end @param {string} text */
  replace(start, end, text) {
    this.all.push({ start, end, text });
  }

  /** @param {number} at @param {string} text @param {number} [from] what is in front of `at` goes */
  insert(at, text, from = at) {
    this.replace(from, at, text);
  }

  text() {
    let done = 0;
    let text = "";
    for (const edit of this.all.toSorted((one, other) => one.start - other.start || one.end - other.end)) {
      text += this.code.slice(done, edit.start) + edit.text;
      done = edit.end;
    }
    return text + this.code.slice(done);
  }
}

/** A statement of a script. @param {Node} statement @param {Edits} edits */
function inScript(statement, edits) {
  const { start } = statement;
  if (statement.type === "VariableDeclaration" && statement.kind !== "var") {
    edits.replace(start, start + statement.kind.length, "var".padEnd(statement.kind.length));
    for (const each of statement.declarations) if (!each.init) edits.insert(each.end, " = undefined");
    endStatement(statement, edits);
  } else if (statement.type === "ClassDeclaration") {
    edits.insert(start, `var ${statement.id.name} = `);
    edits.insert(statement.end, ";");
  } else if (statement.type === "ExportDefaultDeclaration") {
    exportDefault(statement, edits, "var ");
  } else if (statement.type === "ExportNamedDeclaration" && statement.declaration) {
    edits.replace(start, statement.declaration.start, "");
    inScript(statement.declaration, edits);
  }
}

/** A statement that comes into an async function: what it declares is assigned to variables outside.
 * @param {Node} statement @param {Edits} edits @param {Set<string>} names @param {boolean} isStrict */
function inFunction(statement, edits, names, isStrict) {
  if (statement.type === "FunctionDeclaration") {
    edits.replace(statement.start, statement.end, `;${blank(edits.code.slice(statement.start + 1, statement.end))}`);
  } else if (statement.type === "ClassDeclaration") {
    names.add(statement.id.name);
    edits.insert(statement.start, `${statement.id.name} = `);
    edits.insert(statement.end, ";");
  } else if (statement.type === "ImportDeclaration") {
    imports(statement, edits, names);
  } else if (statement.type === "ExportDefaultDeclaration") {
    names.add("handler");
    if (statement.declaration.id) names.add(statement.declaration.id.name);
    exportDefault(statement, edits, "");
  } else if (statement.type === "ExportNamedDeclaration" && statement.declaration) {
    edits.replace(statement.start, statement.declaration.start, "");
    inFunction(statement.declaration, edits, names, isStrict);
  } else if (statement.type === "VariableDeclaration") {
    assign(statement, edits, names);
    endStatement(statement, edits);
  } else {
    for (const { node, parent } of varsBelow(statement)) {
      if (node.type === "FunctionDeclaration") {
        if (!isStrict) inBlock(node, parent, edits, names);
      } else if (/^For(In|Of)Statement$/.test(parent.type) && parent.left === node) {
        edits.replace(node.start, node.declarations[0].id.start, "");
        for (const name of boundNames(node.declarations[0].id)) names.add(name);
      } else {
        assign(node, edits, names);
        if (parent.type !== "ForStatement" || parent.init !== node) endStatement(node, edits);
      }
    }
  }
}

/** A function of a block, from there on the session's. It would be a variable of the async function as well, in front of the
 * session's, unless a `let` of its name were around the block. What a switch compares is outside its block.
 * @param {Node} declaration @param {Node} parent @param {Edits} edits @param {Set<string>} names */
function inBlock(declaration, parent, edits, names) {
  const { name } = declaration.id;
  const block = /^(Block|Switch)Statement$/.test(parent.type) ? parent : declaration;
  const { start, end } = block.discriminant ?? block;
  if (block.discriminant && !edits.all.some((each) => each.start === start && each.end === end)) {
    edits.insert(block.start, `{ const compared$ = (${edits.code.slice(start, end)}); `);
    edits.replace(start, end, "compared$");
    edits.insert(block.end, " }");
  }
  names.add(name);
  edits.insert(block.start, `{ let ${name}; { `);
  edits.insert(declaration.end, ` globalThis.${name} = ${name};`);
  edits.insert(block.end, " } }");
}

/** A script that only declares a waiting cell's functions, as those of the session: calls in them and in later cells are of
 * what their names are by then. @param {Node[]} statements @param {string} code */
function functionsOf(statements, code) {
  const all = statements.map((each) => (each.type === "ExportNamedDeclaration" && each.declaration) || each);
  if (!all.some(({ type }) => type === "FunctionDeclaration")) return "";
  let done = 0;
  let text = "";
  for (const { start, end, type, directive } of all) {
    if (type !== "FunctionDeclaration" && !directive) continue;
    text += blank(code.slice(done, start)) + code.slice(start, end);
    done = end;
  }
  return text;
}

/** A call whose promise nobody gets: an error of it is to be told. @param {Node} statement @param {Edits} edits
 * @param {boolean} isResult */
function watch({ type, expression }, edits, isResult) {
  const { call, isVoid } = (type === "ExpressionStatement" && lastCall(expression)) || {};
  if (!call) return;
  const { callee, arguments: given } = call;
  const isForEach = callee.property?.name === "forEach" && given[0]?.async;
  if (isResult && !isForEach && !isVoid) return;
  const { start, end } = isForEach ? given[0] : call;
  edits.insert(start, isForEach ? "watchedFunction$(" : "watched$(");
  edits.insert(end, ")");
}

/** The call that gives an expression's value, or that a `void` makes nothing of: of `q?.run()`, `isReady && run()`, `void run()`.
 * @param {Node} expression @param {boolean} [isVoid] @returns {{call: Node, isVoid: boolean} | undefined} */
function lastCall(expression, isVoid = false) {
  const { type, operator, argument, right } = expression;
  if (type === "ChainExpression") return lastCall(expression.expression, isVoid);
  if (type === "LogicalExpression") return lastCall(right, isVoid);
  if (type === "UnaryExpression" && operator === "void") return lastCall(argument, true);
  return type === "CallExpression" ? { call: expression, isVoid } : undefined;
}

/** As many lines and columns of nothing. @param {string} code */
function blank(code) {
  return code.replace(/./g, " ");
}

/** What has been changed might go on in the next line, as it did not before. @param {Node} statement @param {Edits} edits */
function endStatement({ end }, edits) {
  if (edits.code[end - 1] !== ";") edits.insert(end, ";");
}

/** `const a = f(), { b } = c` becomes `void ((a = f()), ({ b } = c))`.
 * @param {Node} declaration @param {Edits} edits @param {Set<string>} names */
function assign(declaration, edits, names) {
  const { declarations, start, kind } = declaration;
  edits.replace(start, declarations[0].start, "void (".padEnd(kind.length));
  for (const each of declarations) {
    for (const name of boundNames(each.id)) names.add(name);
    edits.insert(each.start, "(");
    edits.insert(each.end, each.init ? ")" : kind === "var" ? ")" : " = undefined)");
  }
  edits.insert(declarations.at(-1).end, ")");
}

/** @param {Node} statement @param {Edits} edits @param {string} keyword */
function exportDefault(statement, edits, keyword) {
  const { declaration, start, end } = statement;
  const isNamed = /Declaration$/.test(declaration.type) && declaration.id;
  edits.replace(start, declaration.start, `${keyword}handler = `);
  if (isNamed) edits.insert(end, `; ${keyword}${declaration.id.name} = handler;`);
  else if (/Declaration$/.test(declaration.type)) edits.insert(end, ";");
}

/** @param {Node} statement @param {Edits} edits @param {Set<string>} names */
function imports(statement, edits, names) {
  const from = `await import(${JSON.stringify(statement.source.value)})`;
  /** @type {string[]} */
  const parts = [];
  let whole = "";
  for (const each of statement.specifiers) {
    const name = each.local.name;
    names.add(name);
    if (each.type === "ImportNamespaceSpecifier") whole = name;
    else if (each.type === "ImportDefaultSpecifier") parts.push(`default: ${name}`);
    else parts.push(`${JSON.stringify(each.imported.name ?? each.imported.value)}: ${name}`);
  }
  const taken = parts.length ? `({ ${parts.join(", ")} } = ${whole || from});` : "";
  const named = whole ? `${whole} = ${from};` : "";
  edits.replace(statement.start, statement.end, `;${`${named}${taken}` || `${from};`}`);
}

/** The names that a pattern binds. @param {Node} pattern @returns {string[]} */
function boundNames(pattern) {
  if (!pattern) return [];
  if (pattern.type === "Identifier") return [pattern.name];
  if (pattern.type === "ObjectPattern") return pattern.properties.flatMap((/** @type {Node} */ each) => boundNames(each.value ?? each));
  if (pattern.type === "ArrayPattern") return pattern.elements.flatMap(boundNames);
  return boundNames(pattern.argument ?? pattern.left);
}

/** The parts of a node. @param {Node} node @returns {Node[]} */
function children(node) {
  return Object.values(node).flat().filter((each) => typeof each?.type === "string");
}

const FUNCTIONS = /Function|^(Class|MethodDefinition|PropertyDefinition|StaticBlock)/;

/** Whether it waits itself, and not a function in it. @param {Node} node @returns {boolean} */
function awaits(node) {
  if (node.type === "AwaitExpression" || (node.type === "ForOfStatement" && node.await)) return true;
  return !FUNCTIONS.test(node.type) && children(node).some(awaits);
}

/** The `var`s in a statement, which are the cell's, and as such the functions of its blocks, but for those of a `let` around
 * them. @param {Node} statement @param {Node} parent a switch has one block for all cases
 * @param {string[]} lets @returns {{node: Node, parent: Node}[]} */
function varsBelow(statement, parent = statement, lets = letsOf(statement)) {
  if (FUNCTIONS.test(statement.type)) return [];
  return children(statement).flatMap((node) => {
    if (node.type === "VariableDeclaration" && node.kind === "var") return [{ node, parent }];
    if (node.type === "FunctionDeclaration" && !node.async && !node.generator) return lets.includes(node.id.name) ? [] : [{ node, parent }];
    return varsBelow(node, node.type === "SwitchCase" ? statement : node, [...lets, ...letsOf(node)]);
  });
}

/** What `let`, `const` and `class` bind in a block or in the head of a loop. @param {Node} node @returns {string[]} */
function letsOf({ type, body, cases, init, left }) {
  const inside = { BlockStatement: body, SwitchStatement: cases?.flatMap((/** @type {Node} */ each) => each.consequent) }[type];
  return (inside ?? [init ?? left]).flatMap((/** @type {Node | undefined} */ each) => {
    if (each?.type === "ClassDeclaration") return [each.id.name];
    if (each?.type !== "VariableDeclaration" || each.kind === "var") return [];
    return each.declarations.flatMap((/** @type {Node} */ { id }) => boundNames(id));
  });
}
