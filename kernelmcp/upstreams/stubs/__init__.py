"""Tools as Python files that a guest imports and a model reads: rendered from catalogues, and published as a folder.

All input is untrusted. Must not know connections, policy or sessions.
"""

from kernelmcp.upstreams.stubs.published import publish
from kernelmcp.upstreams.stubs.rendered import Rendered, render

__all__ = ["Rendered", "publish", "render"]
