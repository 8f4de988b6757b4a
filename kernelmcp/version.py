"""The version of kernelmcp: pyproject.toml reads it from here, and so does every module that names it."""

__version__ = "0.1.0"
