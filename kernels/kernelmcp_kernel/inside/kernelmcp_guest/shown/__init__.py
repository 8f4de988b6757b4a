"""Objects that a notebook displays itself, for a model as text and images."""
