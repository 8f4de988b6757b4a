"""What a kernel is told at its start: the settings that are its business, as environment variables (docs/design.md 3).

Above: pool. Below: config, home. A kernel that is not ours ignores them.
"""

import os

from kernelmcp.config import Flavor, Settings
from kernelmcp.home import Berth


def kernel_environment(settings: Settings, berth: Berth, flavor: Flavor) -> dict[str, str]:
    """The variables of one kernel process; read there by kernelmcp_kernel/settings.py."""
    return {
        "KERNELMCP_BERTH": str(berth.path),
        "KERNELMCP_HOME": str(settings.home.absolute()),
        "KERNELMCP_PACKAGES": settings.config.packages.model_dump_json(),
        "KERNELMCP_MEMORY_MB": str(settings.policy.flavors[flavor].memory_mb),
        "JPY_PARENT_PID": str(os.getpid()),
    }
