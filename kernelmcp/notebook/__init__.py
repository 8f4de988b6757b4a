"""A session as a notebook: the journal of its cells, and the .ipynb file."""
