"""The user's other MCP servers: their tools, and calls to them. See docs/architecture.md."""
