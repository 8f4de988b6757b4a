"""Calls of other servers' tools by code in the sandbox: permissions, limits, and the audit."""
