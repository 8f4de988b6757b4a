"""Which tools of a build compile. Imported by the kernel process and by pip's, and imports nothing."""

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
# They make C of Python, and are left out: where the build can do without, it makes a package in pure Python.
LEFT_OUT = frozenset(("cython", "mypy"))
