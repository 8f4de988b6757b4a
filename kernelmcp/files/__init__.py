"""Directories on disk: the server's own, and those that a hostile guest may change at any moment."""
