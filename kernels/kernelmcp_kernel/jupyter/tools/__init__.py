"""Tools of other MCP servers, which a client of this kernel offers to its guests."""
