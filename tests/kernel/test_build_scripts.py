"""What a setup.py says without being run: a package that must be compiled is refused while it is looked for."""

import pytest

from kernelmcp_kernel.packages.sources.reading import needs_compiler

EXTENSION = "Extension('a._fast', ['a.c'])"
PLAIN = f"from setuptools import Extension, setup\nsetup(name='a', ext_modules=[{EXTENSION}])\n"


@pytest.mark.parametrize(
    "script",
    [
        PLAIN,
        f"import setuptools\nsetuptools.setup(ext_modules=[setuptools.{EXTENSION}])",
        f"flags = []\nif sys.platform == 'win32':\n    flags.append(1)\nmade = [{EXTENSION}]\nsetup(ext_modules=made)",
    ],
)
def test_extensions_that_are_always_built_need_a_compiler(script: str) -> None:
    assert needs_compiler(script.encode())


@pytest.mark.parametrize(
    "script",
    [
        "from setuptools import setup\nsetup()",
        "setup(ext_modules=[])",
        "setup(ext_modules=[Extension('a', ['a.c'], optional=True)])",
        "setup(ext_modules=[Extension('a', ['a.c'], **options)])",
        f"setup(ext_modules=[{EXTENSION}], cmdclass={{'build_ext': mine}})",
        f"setup(ext_modules=[{EXTENSION}], **options)",
        f"setup(ext_modules=cythonize([{EXTENSION}]))",
        f"if FAST:\n    setup(ext_modules=[{EXTENSION}])\nelse:\n    setup()",
        f"try:\n    setup(ext_modules=[{EXTENSION}])\nexcept SystemExit:\n    setup()",
        f"made = [{EXTENSION}]\nif PYPY:\n    made = []\nsetup(ext_modules=made)",
        f"made = [{EXTENSION}]\nif PYPY:\n    made.clear()\nsetup(ext_modules=made)",
        f"made = []\nmade.append({EXTENSION})\nsetup(ext_modules=made)",
        "setup(ext_modules=made)",
        "print 'of Python 2'",
        "(" * 100_000,
        "x = " + "-" * 100_000 + "1",
        "\0",
        "",
    ],
)
def test_what_is_not_plain_is_left_to_the_build(script: str) -> None:
    assert not needs_compiler(script.encode())
