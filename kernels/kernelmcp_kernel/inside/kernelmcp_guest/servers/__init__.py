"""Tools of the user's other MCP servers as functions."""
