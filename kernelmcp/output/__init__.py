"""What a cell put out, made harmless and kept under caps."""
