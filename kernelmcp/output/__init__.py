"""The output of cells, made harmless and kept within limits."""
