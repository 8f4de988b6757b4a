"""Packages of Pyodide's distribution in plain Python, for where its files cannot be had.

Each is compiled code that much else needs for little: rpds-py holds back jsonschema, and with it altair, nbformat and
mcp. A stand-in has the same names and gives the same values, slower; its version says that it is one (`+pure`). It is
offered only when the distribution's own file is not there: with that, nothing here is used.
"""
