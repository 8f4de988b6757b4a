"""One server among several that share its home."""
