"""Settings: every one with its reason, where they come from, and how they change while the server runs."""
