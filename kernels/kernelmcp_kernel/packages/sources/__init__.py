"""Packages that exist only as a source: examined by pip's process, built in a guest, cached as pure Python wheels.

`reading` and `in_pip` are part of a run of pip (`pip_main`), which imports them by path. `offers` is the input for pip,
and handles the sources that it chooses; `builder` turns a source into a wheel, `guest` is the process that runs its
build, `rewrite` selects what to keep of the result, `kept` remembers it.
"""
