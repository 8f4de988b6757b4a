"""The notebook of a session: the journal of its cells, and the .ipynb file."""
