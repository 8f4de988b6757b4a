"""Extensions of MCP that this server implements, except for views."""
