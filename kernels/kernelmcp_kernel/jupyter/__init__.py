"""Jupyter's messages: the kernel class, its requests, iopub, stdin, and the application around it."""
