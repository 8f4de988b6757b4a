"""Opens pictures that a guest made, in a process of its own. Nothing here is imported by the server."""
