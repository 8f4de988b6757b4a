"""Packages that exist only as a source: examined by pip's process, built in a guest, cached as pure Python wheels.

`source_candidates`, `reading` and `optional_dependencies` are part of a run of pip (`pip_main`), which imports them by
path. `source_offers` is the input for pip, and handles the sources that it chooses; `source_builder` makes a wheel of a
source, `build_process` runs its build, `rewrite` selects what to keep of the result, `build_cache` remembers it.
"""
