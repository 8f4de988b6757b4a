"""Commands that read and write archives, with Python's own modules for them."""
