"""A cell's one record: what its kernel says becomes events, and everybody who shows the cell applies them."""
