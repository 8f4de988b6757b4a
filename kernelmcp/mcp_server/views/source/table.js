// A table that is sorted, filtered and paged here: from the rows of a Table Schema, or from a guest's HTML, of which only the
// text is taken.

/** `index`: how many of the columns are the index; `of`: how many rows the whole frame has.
 * @typedef {{names: string[], index: number, rows: string[][], of: number}} Table */

const ROWS_PER_PAGE = 20;
// The first rows decide whether a column is one of numbers.
const SAMPLE_ROWS = 200;
// Of a table in HTML: pandas writes 60 rows and 20 columns, but any HTML may say that it is pandas'.
const MAX_CELLS = 100_000;
const MAX_COLUMNS = 1_000;
const MAX_CELL_CHARS = 2_000_000;
// Beside it is nothing, or its size, as pandas says it and as polars does.
const WHOLE = /^(?:(\d[\d,]{0,20}) rows × \d[\d,]{0,20} columns|shape: \((\d[\d_]{0,20}),[\d_ ]{0,30}\))?$/;
const NO_TEXT = "img, svg, video, audio, canvas, iframe, object, embed, input, button";

/** The table in the HTML of a data frame; null for any other, and for HTML with more than a table.
 * @param {string} html @returns {Table | null} */
function tableOfHtml(html) {
  // An inert document: nothing of it runs or loads.
  const page = new DOMParser().parseFromString(html, "text/html"), [table, ...others] = page.querySelectorAll("table");
  if (!table?.classList.contains("dataframe") || table.caption || others.length || page.querySelector(NO_TEXT)) return null;
  const head = spread([...(table.tHead?.rows ?? [])]), rows = spread([...table.tBodies].flatMap((part) => [...part.rows]));
  if (!head || !rows || head.length > MAX_COLUMNS) return null;
  const index = rows[0]?.filter((cell) => cell.isHead).length ?? 1;
  const width = [...head, ...rows].reduce((most, cells) => Math.max(most, cells.length), 0);
  if (width * head.length > MAX_CELLS) return null;
  const columns = Array.from({ length: width }, (_, column) => head.map((cells) => cells[column]?.text ?? "").filter(Boolean));
  for (const each of [table, ...page.querySelectorAll("style")]) each.remove();
  const beside = WHOLE.exec((page.documentElement.textContent ?? "").trim());
  if (!beside) return null;
  const whole = beside.slice(1).find(Boolean);
  return {
    // Above the index stand the names of the columns' levels, too.
    names: columns.map((names, column) => (column < index ? (names.at(-1) ?? "") : names.join(" / "))),
    index,
    rows: rows.map((cells) => Array.from(cells, (cell) => cell?.text ?? "")),
    of: whole ? Number(whole.replace(/[,_]/g, "")) : rows.length,
  };
}

/** What the cells of rows say, that of a cell of a MultiIndex in each place that it spans; null if that is too much.
 * @param {HTMLTableRowElement[]} rows */
function spread(rows) {
  /** @type {{text: string, isHead: boolean}[][]} */
  const lines = rows.map(() => []);
  let count = 0, chars = 0;
  for (const [number, row] of rows.entries()) {
    let column = 0;
    for (const cell of row.cells) {
      while (lines[number]?.[column]) column++;
      // 0: to the last one.
      const below = lines.slice(number, cell.rowSpan ? number + cell.rowSpan : undefined), end = column + cell.colSpan;
      const found = { text: (cell.textContent ?? "").trim(), isHead: cell.tagName === "TH" };
      const places = below.length * cell.colSpan;
      if ((count += places) > MAX_CELLS || (chars += places * found.text.length) > MAX_CELL_CHARS || end > MAX_COLUMNS) return null;
      for (const line of below) for (let place = column; place < end; place++) line[place] = found;
      column = end;
    }
  }
  return lines;
}

/** The table of a data resource; `rows` is how many the whole frame has. @param {any} resource @returns {Table} */
function tableOfSchema({ schema, data, rows: of }) {
  /** @type {string[]} */
  const names = schema.fields.map((/** @type {any} */ field) => String(field.name));
  const keys = new Set([].concat(schema.primaryKey ?? []).map(String));
  const text = (/** @type {any} */ value) => (value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));
  const rows = data.map((/** @type {any} */ row) => names.map((name) => text(row[name] ?? null)));
  return { names, index: names.filter((name) => keys.has(name)).length, rows, of: Number.isInteger(of) ? of : rows.length };
}

/** Python writes infinities in its own way. @param {string} text */
const numberOf = (text) => Number(text.replace(/^(-?)inf$/, "$1Infinity"));
/** @param {string} text */
const isNumber = (text) => text.trim() !== "" && !Number.isNaN(numberOf(text));

/** Numbers in their order, other texts in theirs, and missing values last. @param {boolean} numeric @param {number} sign
 * @returns {(one: string, other: string) => number} */
function order(numeric, sign) {
  return (one, other) => {
    if (!numeric) return sign * one.localeCompare(other);
    if (isNumber(one) !== isNumber(other)) return isNumber(one) ? -1 : 1;
    return isNumber(one) ? sign * (numberOf(one) - numberOf(other)) : 0;
  };
}

/** @param {number} count @param {string} thing */
const many = (count, thing) => `${count.toLocaleString()} ${thing}${count === 1 ? "" : "s"}`;

/** @param {Table} table @param {boolean} canSave */
function grid({ names, index, rows, of }, canSave) {
  const isBlank = (/** @type {string | undefined} */ cell) => cell === undefined || ["", "NaN", "NaT", "<NA>", "None", "..."].includes(cell);
  const numeric = names.map((_, column) => rows.slice(0, SAMPLE_ROWS).every((row) => isBlank(row[column]) || isNumber(row[column] ?? "")));
  let sorted = -1, sign = 1, page = 0, words = "";
  const body = make("tbody"), head = make("tr"), count = make("span", { class: "grow", role: "status" });

  const chosen = () => {
    const kept = words ? rows.filter((row) => row.some((cell) => cell.toLowerCase().includes(words))) : rows.slice();
    const compare = sorted < 0 ? undefined : order(numeric[sorted] === true, sign);
    return compare ? kept.sort((one, other) => compare(one[sorted] ?? "", other[sorted] ?? "")) : kept;
  };
  const cellOf = (/** @type {string} */ cell, /** @type {number} */ column) => {
    const kind = `${numeric[column] ? "" : "text"}${column < index ? " index" : ""}`;
    return make("td", { class: kind, title: cell.length > 40 ? cell.slice(0, 1000) : false }, cell);
  };
  const headOf = (/** @type {string} */ name, /** @type {number} */ column) => {
    const arrow = column !== sorted ? "" : sign > 0 ? " ↑" : " ↓";
    const sort = () => {
      sign = sorted === column ? -sign : 1;
      sorted = column;
      draw();
      head.querySelectorAll("button")[column]?.focus();
    };
    const direction = column !== sorted ? "none" : sign > 0 ? "ascending" : "descending";
    return make("th", { scope: "col", class: numeric[column] ? "" : "text", "aria-sort": direction }, linkButton((name || "index") + arrow, sort, "sort"));
  };
  function draw() {
    const kept = chosen(), pages = Math.max(1, Math.ceil(kept.length / ROWS_PER_PAGE));
    page = Math.min(Math.max(page, 0), pages - 1);
    body.replaceChildren(...kept.slice(page * ROWS_PER_PAGE, (page + 1) * ROWS_PER_PAGE).map((row) => make("tr", {}, ...row.map(cellOf))));
    head.replaceChildren(...names.map(headOf));
    const found = words ? `${kept.length.toLocaleString()} of ` : "";
    const cut = of > rows.length ? ` (the frame has ${of.toLocaleString()})` : "";
    const place = pages > 1 ? ` · page ${page + 1} of ${pages}` : "";
    count.textContent = `${found}${many(rows.length, "row")}${cut} × ${many(names.length - index, "column")}${place}`;
    turn.hidden = pages < 2;
  }
  const turnTo = (/** @type {number} */ by) => () => {
    page += by;
    draw();
  };
  const turn = make("span", {}, linkButton("‹", turnTo(-1), "previous page"), linkButton("›", turnTo(1), "next page"));
  const filter = /** @type {HTMLInputElement} */ (make("input", { type: "search", placeholder: "filter", "aria-label": "filter rows", hidden: rows.length <= 5 }));
  filter.addEventListener("input", () => {
    words = filter.value.toLowerCase();
    page = 0;
    draw();
  });
  const quoted = (/** @type {string} */ cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  const csv = () => [names, ...chosen()].map((row) => row.map(quoted).join(",")).join("\n");
  const save = linkButton("CSV", () => void saveFile("table.csv", "text/csv", { text: csv() }), "download these rows");
  const table = make("div", { class: "scroll", tabindex: "0" }, make("table", {}, make("thead", {}, head), body));
  draw();
  return make("div", { class: "grid" }, table, make("div", { class: "bar" }, count, turn, filter, ...(canSave ? [save] : [])));
}
