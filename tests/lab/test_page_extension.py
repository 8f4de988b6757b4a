"""Lab's part of ours in a page that is only as much of Lab as it asks for."""

import json
import subprocess
from typing import Any

from kernelmcp.lab import extension
from kernelmcp_kernel.runtime.build_identity import node_binary

SCRIPT = extension.__file__.replace("extension.py", "labextensions/kernelmcp-lab/static/remoteEntry.js")
PAGE = """
globalThis.window = globalThis;
globalThis.CSSStyleSheet = class { replaceSync() {} };
require(process.argv[1]);
const shared = { '@jupyterlab/notebook': {}, '@jupyterlab/rendermime': {} };
for (const versions of Object.values(shared)) versions[1] = { get: async () => () => ({}) };

class Cell {
  constructor(id) {
    this.id = id;
    this.metadata = { kernelmcp: {}, editable: false, deletable: false, tags: [] };
  }
  getMetadata(name) { return this.metadata[name]; }
  deleteMetadata(name) { delete this.metadata[name]; }
}
class Panel {
  constructor(path, saved) {
    const cells = Object.assign([], { changed: { connect: slot => (this.tell = slot) } });
    const model = { getMetadata: () => saved };
    const rendermime = { addFactory() {}, getFactory() {}, sanitizer: { sanitize: text => `clean ${text}` } };
    this.context = { path, ready: Promise.resolve(), model };
    this.content = { model: { cells }, rendermime };
  }
  async add(id) {
    const cell = new Cell(id);
    this.content.model.cells.push(cell);
    this.tell(null, { type: 'add', newValues: [cell] });
    await new Promise(setImmediate);
    return Object.keys(cell.metadata);
  }
}
async function activated(id, panels) {
  const lab = window._JUPYTERLAB['kernelmcp-lab'];
  lab.init(shared);
  const plugins = (await lab.get())().default;
  const ready = panels.filter(panel => panel.context);
  const tracker = { forEach: f => ready.forEach(f), widgetAdded: { connect() {} } };
  plugins.find(plugin => plugin.id === `kernelmcp-lab:${id}`).activate(null, tracker);
  await new Promise(setImmediate);
}
const NAME = 'k' + '0'.repeat(23);
"""


def run(script: str) -> Any:
    command = [node_binary(), "-e", f"{PAGE}(async () => console.log(JSON.stringify(await {script})))();", SCRIPT]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)


LOCKED, FREE = ["kernelmcp", "editable", "deletable", "tags"], ["tags"]


def test_a_copy_of_a_sessions_cell_is_a_persons_own_wherever_it_is_put() -> None:
    said = run("""(async () => {
      const record = new Panel('record.ipynb'), view = new Panel('record.ipynb'), own = new Panel('own.ipynb');
      await activated('copies', [own, record, view]);
      own.content.model.cells.push({ id: 'a', getMetadata() {} });
      return {
        recorded: await record.add(NAME),
        in_a_second_view: await view.add(NAME),
        dragged: await own.add(NAME),
        moved: await record.add(NAME),
        pasted: await record.add('another name'),
      };
    })()""")
    assert said == {
        "recorded": LOCKED,
        "in_a_second_view": LOCKED,
        "dragged": FREE,
        "moved": LOCKED,
        "pasted": FREE,
    }


def test_a_copy_of_a_sessions_cell_is_free_beside_cells_of_another_session() -> None:
    said = run("""(async () => {
      const record = new Panel('record.ipynb'), other = new Panel('other.ipynb');
      await activated('copies', [record, other]);
      await record.add(NAME);
      const locked = await other.add('k' + '1'.repeat(23));
      return [locked, await other.add(NAME), await other.add(NAME)];
    })()""")
    assert said == [LOCKED, FREE, FREE]


def test_a_cell_that_is_moved_within_a_record_stays_locked_beside_a_damaged_one() -> None:
    said = run("""(async () => {
      const record = new Panel('record.ipynb'), damaged = new Panel('record.damaged.ipynb');
      const later = 'k' + '1'.repeat(23);
      record.content.model.cells.push(new Cell(NAME));
      await activated('copies', [damaged, record]);
      await record.add(later);
      damaged.content.model.cells.push(new Cell(NAME), new Cell(later));
      return [await record.add(NAME), await record.add(later)];
    })()""")
    assert said == [LOCKED, LOCKED]


def test_saved_widgets_are_sanitized_for_the_page_only() -> None:
    said = run("""(async () => {
      const state = { a: { value: '<b>x</b>', labels: ['1 < 2', '<i>'], index: 1, none: null } };
      const panels = [new Panel('a.ipynb', state), new Panel('none.ipynb')];
      await activated('widgets', panels);
      const [shown, none] = panels.map(panel => panel.context.model.getMetadata('widgets'));
      return [shown, none ?? 'none', panels[0].context.model.getMetadata('other'), state];
    })()""")
    state = {"a": {"value": "<b>x</b>", "labels": ["1 < 2", "<i>"], "index": 1, "none": None}}
    shown = {"a": {"value": "clean <b>x</b>", "labels": ["1 < 2", "clean <i>"], "index": 1, "none": None}}
    assert said == [shown, "none", state, state]


def test_saved_texts_that_are_markup_once_they_are_joined_are_sanitized() -> None:
    said = run("""(async () => {
      const texts = ['<', '', 'img src=x onerror=y>', { toString: 1 }];
      const state = { texts, buttons: ['<', '>'], mixed: ['<', null, 'b>'], other: ['1 <', ' 2'], numbers: [1, 2] };
      const panel = new Panel('a.ipynb', state);
      await activated('widgets', [panel]);
      return panel.context.model.getMetadata('widgets');
    })()""")
    assert said == {
        "texts": ["clean <", "clean ", "clean img src=x onerror=y>", {"toString": 1}],
        "buttons": ["<", ">"],
        "mixed": ["clean <", None, "clean b>"],
        "other": ["1 <", " 2"],
        "numbers": [1, 2],
    }


def test_a_saved_text_that_would_occupy_the_page_is_not_shown() -> None:
    said = run("""(async () => {
      const long = '<b>'.padEnd(200_001), state = { long, plain: ' '.repeat(200_001), list: ['<', `b${long}`] };
      const panel = new Panel('a.ipynb', state);
      await activated('widgets', [panel]);
      const { plain, ...shown } = panel.context.model.getMetadata('widgets');
      return { ...shown, plain: plain.length };
    })()""")
    note = "[this HTML is too long to be shown]"
    assert said == {"long": note, "list": ["<", note], "plain": 200_001}
