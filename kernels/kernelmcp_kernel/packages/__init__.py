"""Packages for a guest: found by pip, kept in a cache that all kernels share, mounted read-only.

Everything here runs in the kernel process, which is trusted, and runs no code of a package: only wheels are taken,
and they are only unpacked. Each module knows one thing: `requirements` what may be asked for, `distribution` where
wheels come from, `resolver` how pip is asked, `pip_output` what it answered, `unpack` hostile archives, `store` the
cache, `installer` the whole way.
"""
