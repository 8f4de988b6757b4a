"""Shared documents of Lab: where they are kept, and the rooms in which tabs and the record meet."""
