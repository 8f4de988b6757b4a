"""Directories on disk: the server's own, and those that a hostile guest changes while we look."""
