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

  const LOOK = new CSSStyleSheet();
  LOOK.replaceSync(`
    dialog {
      box-sizing: border-box; min-width: 320px; max-width: min(720px, 90vw); max-height: 90vh; padding: 16px 20px;
      border: 1px solid GrayText; border-radius: 4px; background: Canvas; color: CanvasText;
      font: 14px/1.4 system-ui, sans-serif;
    }
    h2 { margin: 0 0 8px; font-size: 16px; }
    label { display: block; white-space: pre-wrap; overflow-wrap: anywhere; }
    input { box-sizing: border-box; width: 100%; margin: 12px 0; padding: 4px; font: inherit; }
    form > div { display: flex; justify-content: flex-end; gap: 8px; }
    button { padding: 4px 12px; font: inherit; }
  `);

  /**
   * An open question. It lies in the browser's top layer, in a shadow tree and with fonts and colours of the browser's: the
   * HTML of an output, whose styles are for the whole page, neither covers it nor changes what a person reads.
   */
  class Asked {
    /** @param {Question} question @param {(text: string | null) => void} answer called once, unless it is taken away */
    constructor(question, answer) {
      this.answer = answer;
      this.host = document.createElement('div');
      this.host.className = 'kernelmcp-question';
      this.host.style.cssText = 'all: initial !important';
      const root = this.host.attachShadow({ mode: 'open' });
      root.adoptedStyleSheets = [LOOK];
      const dialog = element('dialog', '');
      dialog.style.colorScheme = document.body.dataset.jpThemeLight === 'false' ? 'dark' : 'light';
      const input = element('input', '');
      input.type = question.password ? 'password' : 'text';
      input.autocomplete = 'off';
      input.autofocus = true;
      const label = element('label', question.prompt);
      label.append(input);
      const none = element('button', 'No answer');
      none.type = 'button';
      const buttons = element('div', '');
      buttons.append(none, element('button', 'Answer'));
      const form = element('form', '');
      form.append(element('h2', `Code of session ${question.session_id} asks`), label, buttons);
      form.addEventListener('submit', event => {
        event.preventDefault();
        this.#end(input.value);
      });
      none.addEventListener('click', () => this.#end(null));
      dialog.addEventListener('close', () => this.#end(null)); // Escape
      dialog.append(form);
      root.append(dialog);
      document.body.append(this.host);
      dialog.showModal();
    }

    /** @param {string | null} text */
    #end(text) {
      if (this.host.isConnected) {
        this.remove();
        this.answer(text);
      }
    }

    remove() {
      this.host.remove();
    }
  }

  /**
   * @template {keyof HTMLElementTagNameMap} T
   * @param {T} tag @param {string} text @returns {HTMLElementTagNameMap[T]}
   */
  function element(tag, text) {
    const made = document.createElement(tag);
    made.textContent = text;
    return made;
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
    const { ServerConnection } = await load('@jupyterlab/services');
    const { URLExt } = await load('@jupyterlab/coreutils');
    const settings = ServerConnection.makeSettings();
    const url = URLExt.join(settings.baseUrl, 'kernelmcp', 'questions');
    /** What is asked now, by execution and prompt: the first one is shown. @type {Map<string, Question>} */
    let open = new Map();
    /** @type {{key: string, asked: Asked} | null} */
    let shown = null;

    /** @param {Question[]} questions everything that is asked now */
    function update(questions) {
      open = new Map(questions.map(one => [JSON.stringify([one.execution_id, one.prompt, one.password]), one]));
      if (shown && !open.has(shown.key)) {
        shown.asked.remove(); // answered elsewhere, or its cell has ended
        shown = null;
      }
      showNext();
    }

    function showNext() {
      const [next] = open;
      if (shown || !next) {
        return;
      }
      const [key, question] = next;
      const asked = new Asked(question, text => {
        shown = null;
        open.delete(key);
        showNext();
        const body = JSON.stringify({ execution_id: question.execution_id, text });
        void ServerConnection.makeRequest(url, { method: 'POST', body }, settings);
      });
      shown = { key, asked };
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
        update(news.questions);
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
