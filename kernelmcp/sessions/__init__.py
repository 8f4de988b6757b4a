"""Sessions: finds, makes, limits, stops and deletes them; each has a workspace and, while it is used, a kernel."""
