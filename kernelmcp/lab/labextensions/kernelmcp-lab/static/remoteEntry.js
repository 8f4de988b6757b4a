/**
 * JupyterLab's part of kernelmcp: a dialog for each question of a cell (input(), getpass(), whether a tool may be called),
 * widgets in the model's own cells, a button that goes back to a cell, copies of cells that can be edited, and outputs
 * that pass Lab's sanitizer whoever ran their cell.
 *
 * Written as webpack's module federation would build it, so that there is nothing to build: Lab gives `init` the modules
 * that it shares, and `get` returns the plugin. Prompts are a guest's: they are shown as text and never as markup.
 */
// @ts-check
(() => {
  const NAME = 'kernelmcp-lab';
  const RETRY_MS = 2000;
  const WIDGET = 'application/vnd.jupyter.widget-view+json';

  /** The server's names of cells (record/shared_cells.py). */
  const RECORDED = /^k[0-9a-f]{23}$/;

  /** Where markup is drawn as such. */
  const MARKUP = ['text/html', 'text/markdown', 'text/latex'];
  /** A longer text of a saved widget is not shown: Lab's sanitizer would occupy the page. */
  const MAX_SAVED_CHARS = 200_000;
  const NOT_SHOWN = '[this HTML is too long to be shown]';
  /** How long a question must have been readable before it is answered. */
  const SEEN_MS = 1000;
  const LOOK_MS = 100;

  /**
   * `choices`: what a person may choose, by buttons; none for a line of input.
   * @typedef {{execution_id: string, session_id: string, prompt: string, password: boolean, choices: string[]}} Question
   */

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

  /** What a page can do to all that is in it, and how it is while a question is open. */
  const PLAIN = {
    'clip-path': 'none',
    direction: 'ltr',
    display: 'block',
    filter: 'none',
    mask: 'none',
    'mix-blend-mode': 'normal',
    opacity: '1',
    perspective: 'none',
    rotate: 'none',
    scale: 'none',
    transform: 'none',
    translate: 'none',
    visibility: 'visible',
    'writing-mode': 'horizontal-tb',
    zoom: '1'
  };

  /** @param {HTMLElement} element @param {Record<string, string>} style @returns {() => void} puts back what was there */
  function dress(element, style) {
    const before = element.getAttribute('style');
    for (const [name, value] of Object.entries(style)) {
      element.style.setProperty(name, value, 'important');
    }
    return () => (before === null ? element.removeAttribute('style') : element.setAttribute('style', before));
  }

  /** A generated name is shown by its end. @param {string} session @returns {string} */
  const named = session => session.replace(/^(.+\.[0-9a-f]{34}|[0-9a-f]{44})(?=[0-9a-f]{4}$)/, '…');

  /**
   * An open question. It lies in the browser's top layer, in a shadow tree and with fonts and colours of the browser's: the
   * HTML of an output neither covers it nor changes what a person reads. It takes no answer but "no" before it has been
   * readable for a second, as it looks at itself; and whether a tool may be called is said by a click only.
   */
  class Asked {
    /** @param {Question} question @param {(text: string | null) => void} answer called once, unless it is taken away */
    constructor(question, answer) {
      this.answer = answer;
      this.host = document.createElement('div');
      this.host.className = 'kernelmcp-question';
      dress(this.host, { all: 'initial', direction: 'ltr', 'unicode-bidi': 'isolate' });
      const root = this.host.attachShadow({ mode: 'open' });
      root.adoptedStyleSheets = [LOOK];
      this.dialog = element('dialog', '');
      this.dialog.style.colorScheme = document.body.dataset.jpThemeLight === 'false' ? 'dark' : 'light';
      this.label = element('label', question.prompt);
      const buttons = element('div', '');
      const form = element('form', '');
      form.append(element('h2', `Code of session ${named(question.session_id)} asks`), this.label, buttons);
      /** Those that need a person who has read. @type {HTMLButtonElement[]} */
      this.grants = [];
      if (question.choices.length) {
        buttons.append(...question.choices.map(choice => this.#choice(choice)).reverse());
      } else {
        this.#takeLine(form, buttons, question.password);
      }
      this.dialog.addEventListener('close', () => this.#end(null)); // Escape
      this.dialog.append(form);
      root.append(this.dialog);
      document.documentElement.append(this.host);
      this.undress = [document.documentElement, document.body].map(each => dress(each, PLAIN));
      this.readableFrom = Infinity;
      this.looking = setInterval(() => this.#look(), LOOK_MS);
      this.dialog.showModal();
      this.#look();
    }

    /** @param {string} text @returns {HTMLButtonElement} */
    #choice(text) {
      const button = element('button', text);
      button.type = 'button';
      if (text === 'no') {
        button.autofocus = true;
        button.addEventListener('click', () => this.#end(text));
      } else {
        this.grants.push(button);
        // A key that was pressed for something else is no click.
        button.addEventListener('click', event => event.detail > 0 && this.#isRead() && this.#end(text));
      }
      return button;
    }

    /** @param {HTMLFormElement} form @param {HTMLElement} buttons @param {boolean} isPassword */
    #takeLine(form, buttons, isPassword) {
      const input = element('input', '');
      input.type = isPassword ? 'password' : 'text';
      input.autocomplete = 'off';
      input.autofocus = true;
      this.label.append(input);
      const none = element('button', 'No answer');
      none.type = 'button';
      none.addEventListener('click', () => this.#end(null));
      const answer = element('button', 'Answer');
      this.grants.push(answer);
      buttons.append(none, answer);
      form.addEventListener('submit', event => {
        event.preventDefault();
        if (this.#isRead()) {
          this.#end(input.value);
        }
      });
    }

    #look() {
      if (!this.#isReadable()) {
        this.readableFrom = Infinity;
      } else if (this.readableFrom === Infinity) {
        this.readableFrom = performance.now();
      }
      const isRead = performance.now() - this.readableFrom >= SEEN_MS;
      for (const button of this.grants) {
        button.disabled = !isRead;
      }
    }

    #isRead() {
      this.#look();
      return performance.now() - this.readableFrom >= SEEN_MS;
    }

    /** Whether it is drawn in its own size, where a person sees it, with nothing above it. */
    #isReadable() {
      const { left, top, width, height } = this.dialog.getBoundingClientRect();
      const isWhole = left >= 0 && top >= 0 && left + width <= innerWidth + 1 && top + height <= innerHeight + 1;
      const scale = width / this.dialog.offsetWidth;
      if (!isWhole || width < 300 || height < 80 || !(Math.abs(scale - 1) < 0.02) || document.hidden) {
        return false;
      }
      const above = [document.documentElement, document.body, this.host, this.dialog, this.label];
      const isPlain = above.every(each => {
        const style = getComputedStyle(each);
        const isDrawn = style.visibility === 'visible' && style.opacity === '1' && style.filter === 'none';
        return isDrawn && style.transform === 'none' && style.direction === 'ltr' && (style.zoom || '1') === '1';
      });
      const text = getComputedStyle(this.label);
      if (!isPlain || parseFloat(text.fontSize) < 13 || text.writingMode !== 'horizontal-tb') {
        return false;
      }
      for (let x = 0.05; x < 1; x += 0.15) {
        for (let y = 0.05; y < 1; y += 0.15) {
          if (document.elementFromPoint(left + x * width, top + y * height) !== this.host) {
            return false;
          }
        }
      }
      return true;
    }

    /** @param {string | null} text */
    #end(text) {
      if (this.host.isConnected) {
        this.remove();
        this.answer(text);
      }
    }

    remove() {
      clearInterval(this.looking);
      this.host.remove();
      for (const undress of this.undress) {
        undress();
      }
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

  /**
   * Lab draws the markup of cells that a person ran as it is. Here it passes Lab's sanitizer in every cell: what the server
   * has left of it is clean, and this is for what comes another way, such as a notebook that was copied here.
   * @param {any} rendermime
   */
  function sanitizeAll(rendermime) {
    for (const mime of MARKUP) {
      const factory = rendermime.getFactory(mime);
      const createRenderer = (/** @type {any} */ options) => {
        const renderer = factory.createRenderer(options);
        const render = renderer.renderModel.bind(renderer);
        renderer.renderModel = (/** @type {any} */ model) => render(Object.create(model, { trusted: { value: false } }));
        return renderer;
      };
      rendermime.addFactory(Object.assign(Object.create(factory), { createRenderer, mimeTypes: [mime] }));
    }
  }

  /**
   * Widgets that a notebook has saved pass Lab's sanitizer on their way to the page, which draws some of their texts as
   * HTML, and may join those of a list. The document is not changed.
   * @param {any} tracker of notebooks
   */
  function sanitizeSavedWidgets(tracker) {
    /** @param {any} panel */
    const patch = panel => {
      const { context, content } = panel;
      const saved = context.model.getMetadata.bind(context.model);
      /** @param {any} value */
      const isText = value => typeof value === 'string';
      /** @param {string} text */
      const sanitize = text =>
        text.length > MAX_SAVED_CHARS ? NOT_SHOWN : content.rendermime.sanitizer.sanitize(text);
      /** @param {string} _ @param {any} value */
      const clean = (_, value) => {
        if (isText(value)) {
          return /<[a-z/!?]/i.test(value) ? sanitize(value) : value;
        }
        // The list's texts are clean: a tag is new if it begins where two of them meet.
        if (Array.isArray(value) && /<\0+[a-z/!?]/i.test(value.map(each => (isText(each) ? each : '')).join('\0'))) {
          return value.map(each => (isText(each) ? sanitize(each) : each));
        }
        return value;
      };
      context.model.getMetadata = (/** @type {string | undefined} */ name) => {
        const value = saved(name);
        return name === 'widgets' && value ? JSON.parse(JSON.stringify(value), clean) : value;
      };
    };
    tracker.forEach(patch);
    tracker.widgetAdded.connect((/** @type {any} */ _, /** @type {any} */ panel) => patch(panel));
  }

  /**
   * A copy of a session's cell is a person's own, to be edited: it has another name, or was dragged from a notebook that
   * is open and has it still. A cell that is moved within its notebook was there before.
   * @param {any} tracker of notebooks
   */
  function freeCopies(tracker) {
    /** @param {any} panel @param {(id: string) => boolean} isMeant @returns {string[]} ids of its cells of a session */
    const recorded = (panel, isMeant) =>
      [...(panel.content.model?.cells ?? [])]
        .filter(cell => isMeant(cell.id) && cell.getMetadata('kernelmcp'))
        .map(cell => cell.id);
    /** @param {any} panel @param {any[]} cells @param {Set<string>} seen ids of the panel's own cells of a session */
    const free = (panel, cells, seen) => {
      const added = cells.filter(cell => cell.getMetadata('kernelmcp'));
      const unseen = new Set(added.map(cell => cell.id).filter(id => !seen.has(id)));
      /** @type {Set<string>} */
      const dragged = new Set();
      tracker.forEach((/** @type {any} */ other) => {
        if (unseen.size > 0 && other.context.path !== panel.context.path) {
          recorded(other, id => unseen.has(id)).forEach(id => dragged.add(id));
        }
      });
      for (const cell of added) {
        if (!RECORDED.test(cell.id) || dragged.has(cell.id)) {
          ['kernelmcp', 'editable', 'deletable'].forEach(name => cell.deleteMetadata(name));
        } else {
          seen.add(cell.id);
        }
      }
    };
    /** @param {any} panel */
    const watch = async panel => {
      await panel.context.ready;
      const seen = new Set(recorded(panel, () => true));
      panel.content.model.cells.changed.connect((/** @type {any} */ _, /** @type {any} */ { type, newValues }) => {
        if (type === 'add') {
          queueMicrotask(() => free(panel, newValues, seen)); // not within the change
        }
      });
    };
    tracker.forEach(watch);
    tracker.widgetAdded.connect((/** @type {any} */ _, /** @type {any} */ panel) => void watch(panel));
  }

  /**
   * A button in the toolbar of a session's cell (schemas/kernelmcp-lab/go-back.json): it adds and runs a cell
   * `%restore EXECUTION_ID`, after which variables and files are as they were after that one. Its number would not do:
   * another kernel, and a session that went back, count from where they are.
   * @param {any} app @param {any} tracker of notebooks
   */
  async function offerToGoBack(app, tracker) {
    const { Dialog, showDialog } = await load('@jupyterlab/apputils');
    const { NotebookActions } = await load('@jupyterlab/notebook');
    const { undoIcon } = await load('@jupyterlab/ui-components');
    /** @returns {{id: string, count: number} | null} the active cell's, if it is one of a session that has run */
    const execution = () => {
      const model = tracker.activeCell?.model;
      const id = model?.getMetadata('kernelmcp')?.execution_id;
      return typeof id === 'string' && model.executionCount ? { id, count: model.executionCount } : null;
    };
    app.commands.addCommand('kernelmcp:go-back', {
      label: 'Go back to this cell',
      caption: 'Variables and files as they were after this cell',
      icon: undoIcon,
      isVisible: () => execution() !== null,
      describedBy: { args: { type: 'object', properties: {} } },
      execute: async () => {
        const chosen = execution();
        if (!chosen) {
          return;
        }
        const { content: notebook, sessionContext } = tracker.currentWidget;
        const { button } = await showDialog({
          title: `Go back to cell [${chosen.count}]?`,
          body:
            'Variables and files will be as they were after it. Later checkpoints are kept for a while: ' +
            '%restore NAME brings one back.',
          buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: 'Go back' })]
        });
        if (!button.accept) {
          return;
        }
        notebook.activeCellIndex = notebook.widgets.length - 1;
        NotebookActions.insertBelow(notebook);
        notebook.activeCell.model.sharedModel.setSource(`%restore ${chosen.id}`);
        await NotebookActions.run(notebook, sessionContext);
      }
    });
    tracker.activeCellChanged.connect(() => app.commands.notifyCommandChanged('kernelmcp:go-back'));
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
    const { IRenderMimeRegistry } = await load('@jupyterlab/rendermime');
    return [
      {
        id: `${NAME}:questions`,
        description: 'Asks what the cells of sessions ask.',
        autoStart: true,
        activate: () => void askQuestions()
      },
      {
        id: `${NAME}:widgets`,
        description: "Shows widgets in the model's cells, and sanitizes those that a notebook has saved.",
        autoStart: true,
        requires: [INotebookTracker],
        activate: (/** @type {any} */ app, /** @type {any} */ tracker) => {
          showWidgets(tracker);
          sanitizeSavedWidgets(tracker);
        }
      },
      {
        id: `${NAME}:copies`,
        description: "Lets a person edit a copy of a session's cell.",
        autoStart: true,
        requires: [INotebookTracker],
        activate: (/** @type {any} */ app, /** @type {any} */ tracker) => freeCopies(tracker)
      },
      {
        id: `${NAME}:go-back`,
        description: 'Goes back to how a session was after one of its cells.',
        autoStart: true,
        requires: [INotebookTracker],
        activate: (/** @type {any} */ app, /** @type {any} */ tracker) => offerToGoBack(app, tracker)
      },
      {
        id: `${NAME}:sanitizer`,
        description: 'Draws no markup of an output as it is.',
        autoStart: true,
        requires: [IRenderMimeRegistry],
        activate: (/** @type {any} */ app, /** @type {any} */ rendermime) => sanitizeAll(rendermime)
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
