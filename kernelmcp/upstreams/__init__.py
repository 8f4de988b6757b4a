"""The user's other MCP servers: what they offer, and calls of it. See docs/architecture.md."""
