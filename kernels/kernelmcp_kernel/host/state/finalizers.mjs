// Pyodide lets go of a Python object when JavaScript collects its proxy. After a state was loaded another object may lie at
// that address: the proxies of the heap before it must do nothing any more.

export class Finalizers {
  constructor() {
    this.epoch = 0; // how many heaps there were before this one
    this.calls = 0; // each touches the heap
    /** @type {(held: any) => void} Pyodide's own */
    this.release = () => {};
    /** @type {any} */
    this.module = undefined;
  }

  /** Load a module, and take over its registry, whose callback can be seen only where it is made.
   * @param {(settings: any) => Promise<any>} factory Emscripten's module factory @param {any} settings */
  async load(factory, settings) {
    const { FinalizationRegistry: original } = globalThis;
    /** @type {WeakMap<object, (held: any) => void>} */
    const callbacks = new WeakMap();
    globalThis.FinalizationRegistry = new Proxy(original, {
      construct(target, [callback]) {
        const registry = new target(callback);
        callbacks.set(registry, callback);
        return registry;
      },
    });
    try {
      this.module = await factory(settings);
    } finally {
      globalThis.FinalizationRegistry = original;
    }
    const release = callbacks.get(this.module.finalizationRegistry);
    if (!release) throw new Error("Pyodide's finalization registry was not found");
    this.release = release;
    this.module.finalizationRegistry = this.#registry();
    return this.module;
  }

  /** The heap is about to be replaced. */
  forget() {
    this.epoch++;
    this.module.finalizationRegistry = this.#registry();
  }

  #registry() {
    const { epoch } = this;
    return new FinalizationRegistry((held) => {
      if (epoch !== this.epoch) return;
      this.calls++;
      this.release(held);
    });
  }
}
