"""The guest process, as the kernel process handles it: start, requests, interrupts, limits, replacement."""
