"""Shared documents of Lab: their storage, and the rooms in which tabs and the record meet."""
