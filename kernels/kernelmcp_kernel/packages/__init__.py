"""Packages for a guest: resolved by pip, stored in a cache that all kernels share, mounted read-only.

Everything here runs in the kernel process, which is trusted, and runs no package code: only wheels are accepted, and
they are only unpacked. Each module has one topic: `requirements` which requests are valid, `distribution` the sources
of wheels, `resolver` how to call pip, `failures` why it failed, `unpack` hostile archives, `store` the cache,
`installer` the whole process.
"""
