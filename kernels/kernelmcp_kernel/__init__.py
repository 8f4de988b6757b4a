"""The kernel process of kernelmcp: a Jupyter kernel whose guest is CPython in WebAssembly.

Trusted, one per session, runs no guest code itself. `host/` (JavaScript) and `inside/` (Python) run in the guest.
"""
