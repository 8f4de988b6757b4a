"""Packages that exist as a source only: looked at by pip's process, built in a guest, kept as wheels in pure Python.

`reading` and `in_pip` are part of a run of pip (`pip_main`), which imports them by their place. `offers` is what pip is
told, and what comes of its choice; `builder` the way from a source to a wheel, `guest` the process that runs its build,
`rewrite` what is taken of what comes out, `kept` what is remembered.
"""
