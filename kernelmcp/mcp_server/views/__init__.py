"""Views: the page in which a client's user sees the outputs of a cell (MCP Apps), and what that page reads."""
