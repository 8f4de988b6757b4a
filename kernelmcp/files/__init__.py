"""Directories on disk: those of the server, and those that a hostile guest may change at any moment."""
