"""The environment variables with a kernel's settings at its start (docs/design.md 3).

A kernel that is not ours ignores them.
"""

import json
import os

from kernelmcp.config.models import Flavor
from kernelmcp.config.settings import Settings
from kernelmcp.files.home import SandboxDirectory
from kernelmcp.files.volumes import check_places, kernel_volumes
from kernelmcp.process_start import users_umask


def kernel_environment(settings: Settings, sandbox: SandboxDirectory, flavor: Flavor) -> dict[str, str]:
    """The variables of one kernel process, read by kernelmcp_kernel/settings.py."""
    return {
        **guest_environment(settings, flavor),
        # Nobody would answer a kernel that Jupyter starts.
        "KERNELMCP_ASK_COMMANDS": "1" if settings.config.shell.commands else "",
        "KERNELMCP_SANDBOX_DIRECTORY": str(sandbox.path),
        "JPY_PARENT_PID": str(os.getpid()),
    }


def guest_environment(settings: Settings, flavor: Flavor) -> dict[str, str]:
    """The variables that all kernels of a flavor share. Raises `ConfigurationError`."""
    check_places(settings)
    policy = settings.policy
    found = {
        "KERNELMCP_HOME": str(settings.home.absolute()),
        "KERNELMCP_PACKAGES": settings.config.packages.model_dump_json(),
        "KERNELMCP_MEMORY_MB": str(policy.flavors[flavor].memory_mb),
        "KERNELMCP_NETWORK": _network(settings),
        "KERNELMCP_WORKSPACE_MB": str(policy.workspace_max_mb),
        "KERNELMCP_MAX_FILES": str(policy.max_files),
        "KERNELMCP_BACKGROUND_CPU_SECONDS": str(policy.background_cpu_seconds),
        "KERNELMCP_VOLUMES": json.dumps(kernel_volumes(settings)),
        "KERNELMCP_UMASK": f"{users_umask():o}",
        "KERNELMCP_GUEST_UID": str(policy.guest_uid or ""),
        "KERNELMCP_REQUIRED_LAYERS": ",".join(policy.required_layers),
    }
    if policy.cpu_seconds is not None:
        found["KERNELMCP_CPU_SECONDS"] = str(policy.cpu_seconds)
    if policy.env:
        found["KERNELMCP_ENV"] = json.dumps(policy.env)
    return found


def _network(settings: Settings) -> str:
    """[network] as JSON. Secrets in environment variables are passed by name: the kernel process has the variables
    too."""
    network = settings.config.network
    headers = {
        host: {name: value.get_secret_value() for name, value in pairs.items()}
        for host, pairs in network.headers.items()
    }
    return json.dumps({**network.model_dump(exclude={"headers"}), "headers": headers})
