"""JavaScript: QuickJS, which is WebAssembly, in Node; state is kept from cell to cell as in a REPL."""
