"""`kernelmcp upstreams`: what a person does about the other MCP servers whose tools guests may call."""
