"""`kernelmcp lab`."""
