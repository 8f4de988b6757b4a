"""Output for operators: the log and traces."""
