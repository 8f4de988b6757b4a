"""Tools of the user's other MCP servers as functions: `from servers.NAME import TOOL`.

The kernel process mounts their files at /servers. These import the decorator and the types of results from here.
"""

from kernelmcp_guest.servers.results import Blob, Text
from kernelmcp_guest.servers.stub import tool

__all__ = ["Blob", "Text", "tool"]
