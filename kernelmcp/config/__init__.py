"""Settings: every one with its reason, their sources, and their changes while the server runs."""
