"""Calls that the server answers: tools of other MCP servers, and whether a script may run."""
