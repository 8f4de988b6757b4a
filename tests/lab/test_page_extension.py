"""Lab's part of ours in a page that is only as much of Lab as it asks for."""

import json
import subprocess

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
  constructor(path) {
    const cells = Object.assign([], { changed: { connect: slot => (this.tell = slot) } });
    this.context = { path, ready: Promise.resolve() };
    this.content = { model: { cells } };
  }
  async add(id) {
    const cell = new Cell(id);
    this.content.model.cells.push(cell);
    this.tell(null, { type: 'add', newValues: [cell] });
    await new Promise(setImmediate);
    return Object.keys(cell.metadata);
  }
}
(async () => {
  const lab = window._JUPYTERLAB['kernelmcp-lab'];
  lab.init(shared);
  const plugins = (await lab.get())().default;
  const record = new Panel('record.ipynb'), view = new Panel('record.ipynb'), own = new Panel('own.ipynb');
  const panels = [own, record, view, Object.assign(new Panel('opening.ipynb'), { content: {} })];
  const widgetAdded = { connect() {} };
  const tracker = { forEach: f => panels.slice(0, 3).forEach(f), find: f => panels.find(f), widgetAdded };
  plugins.find(({ id }) => id.endsWith(':copies')).activate(null, tracker);
  await new Promise(setImmediate);
  const name = 'k' + '0'.repeat(23);
  console.log(JSON.stringify({
    recorded: await record.add(name),
    in_a_second_view: await view.add(name),
    dragged: await own.add(name),
    moved: await record.add(name),
    pasted: await record.add('another name'),
  }));
})();
"""


def test_a_copy_of_a_sessions_cell_is_a_persons_own_wherever_it_is_put() -> None:
    command = [node_binary(), "-e", PAGE, SCRIPT]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    locked, free = ["kernelmcp", "editable", "deletable", "tags"], ["tags"]
    assert json.loads(said) == {
        "recorded": locked,
        "in_a_second_view": locked,
        "dragged": free,
        "moved": locked,
        "pasted": free,
    }
