"""What an installation puts where: the kernelspec, the importable packages, the wheel and the source archive."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager

pytestmark = pytest.mark.slow


def test_the_version_has_one_source() -> None:
    import kernelmcp

    assert importlib.metadata.version("kernelmcp") == kernelmcp.__version__


def test_the_kernelspec_is_found_by_jupyter() -> None:
    spec = KernelSpecManager().get_kernel_spec("kernelmcp")
    assert Path(spec.resource_dir) == Path(sys.prefix, "share", "jupyter", "kernels", "kernelmcp")
    assert spec.argv == ["python", "-P", "-m", "kernelmcp_kernel", "-f", "{connection_file}"]
    assert (spec.display_name, spec.language) == ("Python (kernelmcp sandbox)", "python")
    assert (spec.interrupt_mode, spec.metadata["debugger"]) == ("message", False)
    logos = {file.name for file in Path(spec.resource_dir).glob("logo-*")}
    assert logos == {"logo-32x32.png", "logo-64x64.png", "logo-svg.svg"}
