"""Sessions: lookup, creation, limits and deletion. Each has a workspace and, while it is in use, a kernel."""
