"""Opens pictures from a guest in a separate process. The server imports nothing from here."""
