"""Finds installed kernelspecs in jupyter_client's folders, without importing IPython for the name of one of them."""

import os
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from jupyter_core.paths import jupyter_path
from traitlets import default


class Kernelspecs(KernelSpecManager):
    """jupyter_client's own default imports IPython (70 ms of CPU) for the last of these folders."""

    @default("kernel_dirs")
    def _folders(self) -> list[str]:
        own = os.environ.get("IPYTHONDIR") or "~/.ipython"
        return [*jupyter_path("kernels"), str(Path(own).expanduser() / "kernels")]


def find_kernelspec(name: str) -> dict[str, Any] | None:
    """An installed kernelspec as a dict, or None."""
    try:
        return Kernelspecs().get_kernel_spec(name).to_dict()
    except NoSuchKernel:
        return None
