"""Calls of other servers' tools by code in the sandbox: who may call what, how often, and what is noted of it."""
