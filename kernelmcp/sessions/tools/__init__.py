"""Tools of the user's other MCP servers in sessions: offered to kernels, called by executions."""
