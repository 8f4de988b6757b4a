"""An execution's result for a client: its text within a budget, pictures, links, and optional structure."""
