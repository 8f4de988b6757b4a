"""Python: CPython in Pyodide, restored from a boot image by host/main.mjs, with the IPython shell of inside/."""
