"""Python: CPython in Pyodide, started by host/python_guest.mjs from a boot image, with the IPython shell of inside/."""
