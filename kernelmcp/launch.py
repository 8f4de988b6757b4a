"""What a kernel is told at its start: the settings that are its business, as environment variables (docs/design.md 3).

Above: pool. Below: config, home. A kernel that is not ours ignores them.
"""

import json
import os

from kernelmcp.config import Flavor, Settings
from kernelmcp.home import Berth
from kernelmcp.volumes import kernel_volumes


def kernel_environment(settings: Settings, berth: Berth, flavor: Flavor) -> dict[str, str]:
    """The variables of one kernel process; read there by kernelmcp_kernel/settings.py."""
    return {
        "KERNELMCP_BERTH": str(berth.path),
        "KERNELMCP_MEMORY_MB": str(settings.policy.flavors[flavor].memory_mb),
        "KERNELMCP_WORKSPACE_MB": str(settings.policy.workspace_max_mb),
        "KERNELMCP_MAX_FILES": str(settings.policy.max_files),
        "KERNELMCP_VOLUMES": json.dumps(kernel_volumes(settings)),
        "JPY_PARENT_PID": str(os.getpid()),
    }
