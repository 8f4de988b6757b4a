"""The output of cells: sanitized, and kept within limits."""
