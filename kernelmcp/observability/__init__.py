"""What operators read: the log, and traces."""
