"""Prepares packages: fetched, unpacked, compiled to bytecode, and some of them imported in a boot image."""
