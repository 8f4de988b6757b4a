"""A language for tests: a folder as docs/languages.md asks for."""
