"""The MCP tools, and what makes their errors have the contract's shape."""
