"""Packages in plain Python in the place of compiled ones that cannot be had, and what packages can do without.

Each is compiled code that much else needs for little: rpds-py holds back jsonschema, and with it altair, nbformat and
mcp; ormsgpack and uuid-utils hold back langgraph and langchain. A stand-in has the same names and gives the same
values, slower; its version says that it is one (`+pure`). Of a package of Pyodide's distribution it is offered only
when that one's own file is not there: with that, nothing here is used.
"""
