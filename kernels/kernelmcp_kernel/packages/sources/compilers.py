"""What compiles: tools of a build, and packages. Imported by the kernel process and by pip's, and imports nothing."""

# Whatever package builds with one of these compiles something that it cannot do without, or drops it without a word.
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
# Packages whose source always compiles, which their setup.py says in no plain way: a build would find it out in twenty
# seconds.
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
# They make C of Python, and are left out: where the build can do without, it makes a package in pure Python.
LEFT_OUT = frozenset(("cython", "mypy"))
