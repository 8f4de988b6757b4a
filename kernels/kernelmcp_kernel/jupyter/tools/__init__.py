"""Tools of other MCP servers that a client of this kernel offers to its guests."""
