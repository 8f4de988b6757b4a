"""`kernelmcp upstreams`: a person's commands for the other MCP servers whose tools guests may call."""
