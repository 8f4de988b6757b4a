/**
 * JupyterLab's part of kernelmcp: a dialog for each question of a cell that the model has started (input(), getpass()),
 * and widgets in the model's own cells.
 *
 * Written as webpack's module federation would build it, so that there is nothing to build: Lab gives `init` the modules
 * that it shares, and `get` returns the plugin. Prompts are a guest's: they are shown as text and never as markup.
 */
// @ts-check
(() => {
  const NAME = 'kernelmcp-lab';
  const RETRY_MS = 2000;
  const WIDGET = 'application/vnd.jupyter.widget-view+json';

  /** @typedef {{execution_id: string, session_id: string, prompt: string, password: boolean}} Question */

  /** @type {Record<string, Record<string, {get: () => Promise<() => any>}>>} */
  let shared = {};

  /** @param {string} name of a module that Lab has loaded itself */
  async function load(name) {
    const [version] = Object.values(shared[name]);
    return (await version.get())();
  }

  /**
   * @param {any} Dialog
   * @param {any} Widget
   * @param {Question} question
   */
  function makeDialog(Dialog, Widget, question) {
    const node = document.createElement('div');
    const label = document.createElement('label');
    label.style.whiteSpace = 'pre-wrap';
    label.textContent = question.prompt;
    const input = document.createElement('input');
    input.type = question.password ? 'password' : 'text';
    input.className = 'jp-mod-styled';
    input.autocomplete = 'off';
    node.append(label, input);
    const body = new Widget({ node });
    body.getValue = () => input.value;
    return new Dialog({
      title: `Code of session ${question.session_id} asks`,
      body,
      focusNodeSelector: 'input',
      hasClose: false,
      buttons: [Dialog.cancelButton({ label: 'No answer' }), Dialog.okButton({ label: 'Answer' })]
    });
  }

  /**
   * Lab shows widgets in trusted cells only, and the model's are not. A widget is drawn by Lab's own scripts from values
   * that the kernel sends, and no policy lets it bring others.
   * @param {any} tracker of notebooks
   */
  function showWidgets(tracker) {
    /** @param {any} factory */
    const shown = factory =>
      factory.mimeTypes.includes(WIDGET) ? Object.assign(Object.create(factory), { safe: true }) : factory;
    /** @param {any} panel */
    const patch = panel => {
      const rendermime = panel.content.rendermime;
      const add = rendermime.addFactory.bind(rendermime);
      rendermime.addFactory = (/** @type {any} */ factory, /** @type {any} */ rank) => add(shown(factory), rank);
      const there = rendermime.getFactory(WIDGET);
      if (there) {
        add(shown(there));
      }
    };
    tracker.forEach(patch);
    tracker.widgetAdded.connect((/** @type {any} */ _, /** @type {any} */ panel) => patch(panel));
  }

  async function askQuestions() {
    const { Dialog } = await load('@jupyterlab/apputils');
    const { Widget } = await load('@lumino/widgets');
    const { ServerConnection } = await load('@jupyterlab/services');
    const { URLExt } = await load('@jupyterlab/coreutils');
    const settings = ServerConnection.makeSettings();
    const url = URLExt.join(settings.baseUrl, 'kernelmcp', 'questions');
    /** Open dialogs, by execution and prompt. @type {Map<string, any>} */
    const dialogs = new Map();

    /** @param {Question[]} questions everything that is asked now */
    function show(questions) {
      const asked = new Map(questions.map(one => [JSON.stringify([one.execution_id, one.prompt, one.password]), one]));
      for (const [key, dialog] of dialogs) {
        if (!asked.has(key)) {
          dialogs.delete(key);
          dialog.dispose(); // answered elsewhere, or its cell has ended
        }
      }
      for (const [key, question] of asked) {
        if (!dialogs.has(key)) {
          const dialog = makeDialog(Dialog, Widget, question);
          dialogs.set(key, dialog);
          void ask(key, question, dialog);
        }
      }
    }

    /**
     * @param {string} key
     * @param {Question} question
     * @param {any} dialog
     */
    async function ask(key, question, dialog) {
      const result = await dialog.launch();
      if (dialogs.get(key) !== dialog) {
        return; // disposed of
      }
      dialogs.delete(key);
      const text = result.button.accept ? result.value : null;
      const body = JSON.stringify({ execution_id: question.execution_id, text });
      await ServerConnection.makeRequest(url, { method: 'POST', body }, settings);
    }

    let version = '';
    for (;;) {
      // A request that is answered when the list has changed.
      try {
        const body = JSON.stringify({ version });
        const response = await ServerConnection.makeRequest(url, { method: 'PUT', body }, settings);
        if (!response.ok) {
          throw new Error(response.statusText);
        }
        const news = await response.json();
        version = news.version;
        show(news.questions);
      } catch {
        await new Promise(resolve => setTimeout(resolve, RETRY_MS)); // Lab was restarted, or the network is away
      }
    }
  }

  async function makePlugins() {
    const { INotebookTracker } = await load('@jupyterlab/notebook');
    return [
      {
        id: `${NAME}:questions`,
        description: 'Asks what the cells of sessions ask.',
        autoStart: true,
        activate: () => void askQuestions()
      },
      {
        id: `${NAME}:widgets`,
        description: "Shows widgets in the model's cells.",
        autoStart: true,
        requires: [INotebookTracker],
        activate: (/** @type {any} */ app, /** @type {any} */ tracker) => showWidgets(tracker)
      }
    ];
  }

  const lab = /** @type {any} */ (window);
  lab._JUPYTERLAB = lab._JUPYTERLAB || {};
  lab._JUPYTERLAB[NAME] = {
    /** @param {typeof shared} scope */
    init: scope => {
      shared = scope;
    },
    get: async () => {
      const plugins = await makePlugins();
      return () => ({ __esModule: true, default: plugins });
    }
  };
})();
