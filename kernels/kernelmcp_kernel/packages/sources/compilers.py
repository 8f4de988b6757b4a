"""Build tools and packages that compile. Imported by the kernel process and by pip's, and imports nothing."""

# A package that builds with one of these needs a compiled extension, or silently omits it.
COMPILING = frozenset(
    (
        "cffi",
        "cmake",
        "cmeel",
        "cppy",
        "hatch-cython",
        "maturin",
        "meson",
        "meson-python",
        "milksnake",
        "nanobind",
        "ninja",
        "numpy",
        "oldest-supported-numpy",
        "py-build-cmake",
        "pybind11",
        "pyqt-builder",
        "pythran",
        "scikit-build",
        "scipy",
        "setuptools-golang",
        "setuptools-rust",
        "sip",
        "swig",
        "torch",
        "uv-build",
        "ziglang",
    )
)
# Packages whose source always compiles, although their setup.py is unclear: a build takes twenty seconds to fail.
ALWAYS_COMPILED = frozenset(
    (
        "gevent",
        "gmpy2",
        "grpcio",
        "grpcio-tools",
        "hiredis",
        "llvmlite",
        "lz4",
        "mysqlclient",
        "netifaces",
        "numba",
        "psycopg2",
        "pyaudio",
        "pycairo",
        "pycurl",
        "pygame",
        "pyodbc",
        "python-ldap",
        "uvloop",
        "xmlsec",
    )
)
# They translate Python to C, and are left out: if the build works without them, the result is pure Python.
LEFT_OUT = frozenset(("cython", "mypy"))
