"""What a notebook shows by itself, and a model gets as text and pictures."""
