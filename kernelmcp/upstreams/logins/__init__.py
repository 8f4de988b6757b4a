"""Logins to upstreams: what is kept of them, and how they are renewed."""
