"""kernelmcp: an MCP server that gives a language model a sandboxed Jupyter kernel of its own."""

__version__ = "0.1.0"
