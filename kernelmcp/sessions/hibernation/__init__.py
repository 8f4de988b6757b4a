"""The variables of a session while it has no kernel."""
