"""Logins to upstreams: their storage and renewal."""
