"""Libraries that other libraries import when they are there, and that take seconds of CPU for what we never ask."""

import sys
from typing import cast

# jsonschema's checks of the formats `iri` and `iri-reference`: 38 parsers, built when it is imported. jupyter_server's
# extra brings it.
_UNNEEDED = ("rfc3987_syntax",)


def skip_slow_imports() -> None:
    """Make them look as if they were not installed, in a process of our own."""
    modules = cast("dict[str, object]", sys.modules)
    for name in _UNNEEDED:
        modules.setdefault(name, None)
