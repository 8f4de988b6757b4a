"""What a client of MCP sees: tools, resources, prompts, results and notifications."""
