"""Commands that behave as GNU's where bashkit's own lose data or give wrong results."""
