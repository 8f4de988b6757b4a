"""The MCP interface: tools, resources, prompts, results and notifications."""
