"""Hatchling's hook: builds the guest's runtime before a wheel (an editable one too) is packed.

Below: `kernels/kernelmcp_kernel/build.py`, loaded by its path, since nothing of ours is installed yet.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RuntimeBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        package_dir = Path(self.root) / "kernels" / "kernelmcp_kernel"
        build = _load(package_dir / "build.py")
        try:
            build.build_runtime(package_dir, self.app.display_info)
        except build.BuildError as error:
            self.app.abort(f"kernelmcp: {error}")


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernelmcp_build", file)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
