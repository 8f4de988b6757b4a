"""`kernelmcp install`: the server as an entry in the configuration of an MCP client."""
