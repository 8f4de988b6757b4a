"""Checks before a server starts and before changed settings are applied, beyond the settings' types.

The kernel's own probe tests the layers that a policy requires, in a separate process: it applies each layer, and must
then be denied an action that it could perform before.
"""

import subprocess
import sys

from kernelmcp.config.models import OWN_KERNELSPEC
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ConfigurationError, LayersMissing
from kernelmcp.files.volumes import check_volumes
from kernelmcp.process_start import python_command

PROBE_SECONDS = 30.0
# For a server with one session: with fewer, its cells end as if a kernel had died.
MIN_OPEN_FILES = 128
# For a guest, which inherits the limit: it starts with 1,536 and not with 1,024.
MIN_ADDRESS_SPACE_MB = 2048
ADVICE = "`kernelmcp doctor` shows what it has; take the layer from required_layers to run without it."


def check_start(settings: Settings) -> None:
    """Check whether a server may start. Raises `ConfigurationError`, and `LayersMissing` last. If layers are required
    it starts a process, which takes a tenth of a second."""
    if settings.config.telemetry.otlp_endpoint is not None:
        from kernelmcp.observability import telemetry

        telemetry.check_installed()
    check_limits()
    check_volumes(settings)
    if settings.policy.required_layers:
        _check_layers(settings)


def check_change(settings: Settings) -> None:
    """Check whether a running server may apply these: the parts of `check_start` that can have changed. Raises as it
    does."""
    check_volumes(settings)
    if settings.policy.required_layers:
        _check_kernelspec(settings)


def check_limits() -> None:
    """Check the limits of this process, which may prevent it from starting a thread. Raises `ConfigurationError`."""
    if sys.platform == "win32":
        return
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < MIN_OPEN_FILES:
        raise ConfigurationError(
            f"this process may open {soft} files, but a server needs {MIN_OPEN_FILES}",
            f"Raise the limit where it is started: ulimit -n {8 * MIN_OPEN_FILES}",
        )
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= space < MIN_ADDRESS_SPACE_MB * 2**20:
        raise ConfigurationError(
            f"this process may use {space // 2**20:,} MB of address space, but a sandbox needs "
            f"{MIN_ADDRESS_SPACE_MB:,} MB",
            "Raise the limit where it is started: ulimit -v unlimited. policy.flavors bounds the memory of sandboxes.",
        )


def _check_layers(settings: Settings) -> None:
    """Raises `LayersMissing`."""
    _check_kernelspec(settings)
    required = list(settings.policy.required_layers)
    if not required:
        return
    try:
        done = subprocess.run(
            python_command("kernelmcp_kernel.sandbox.probe", *required),
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise LayersMissing(
            f"required_layers: the layers of this machine could not be determined: {exc}", "Install kernelmcp again."
        ) from exc
    if done.returncode != 0:
        lacking = ", ".join(done.stdout.split()) or (done.stderr.strip().splitlines() or ["the probe ended"])[-1]
        raise LayersMissing(f"required_layers: this machine does not have {lacking}", ADVICE)


def _check_kernelspec(settings: Settings) -> None:
    """The layers of a kernel other than our own are unknown. Raises `LayersMissing` if some are required."""
    required, spec = settings.policy.required_layers, settings.config.kernels.kernelspec
    if required and spec != OWN_KERNELSPEC:
        raise LayersMissing(
            f"required_layers: {spec!r} is not kernelmcp's own kernelspec, "
            f"so it is unknown whether it has {', '.join(required)}",
            f"Set kernels.kernelspec to {OWN_KERNELSPEC!r}, or required_layers to [].",
        )
