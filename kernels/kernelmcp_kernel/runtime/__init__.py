"""The parts of a guest: Node, Pyodide, the boot image, and its writable directories."""
