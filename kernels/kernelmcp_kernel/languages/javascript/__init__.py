"""JavaScript: QuickJS (WebAssembly) in Node; state is kept between cells, as in a REPL."""
