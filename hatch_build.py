"""Hatchling's hook: builds what the guests of each language run on before a wheel (an editable one too) is packed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RuntimeBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sources = Path(self.root) / "kernels"
        sys.path.insert(0, str(sources))  # in the build's own process, which ends with the build
        from kernelmcp_kernel.languages import builders
        from kernelmcp_kernel.runtime.identity import BuildError

        try:
            for build_runtime in builders():
                build_runtime(sources / "kernelmcp_kernel", self.app.display_info)
        except BuildError as error:
            self.app.abort(f"kernelmcp: {error}")
