"""Prepares packages: downloads, unpacks and compiles them to bytecode, and imports some of them in a boot image."""
