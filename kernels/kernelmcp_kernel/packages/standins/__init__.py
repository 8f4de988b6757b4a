"""Pure Python replacements for unavailable compiled packages, and dependencies that packages can do without.

Many packages need little of these compiled ones: without rpds-py there is no jsonschema, and so no altair, nbformat and
mcp; without ormsgpack and uuid-utils there is no langgraph and langchain. A stand-in has the same names and returns the
same values, slower; its version marks it as one (`+pure`). For a package of Pyodide's distribution it is offered only
if the original file is unavailable; otherwise nothing here is used.
"""
