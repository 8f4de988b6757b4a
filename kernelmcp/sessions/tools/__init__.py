"""Tools of the user's other MCP servers, as sessions have them: offered to kernels, called by executions."""
