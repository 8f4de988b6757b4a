"""Extensions of MCP that this server implements, except for views."""

TASKS = "io.modelcontextprotocol/tasks"
SKILLS = "io.modelcontextprotocol/skills"
