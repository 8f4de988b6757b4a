"""What a client gets of an execution: its text within a budget, pictures, links, and the structure for who asks."""
