"""Pictures from a guest: their headers are read here, and a separate confined process decodes them."""
