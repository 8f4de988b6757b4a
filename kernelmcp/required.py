"""Refuses to serve where a layer that the policy requires does not hold (`required_layers`).

Above: checks. Below: the kernel's own probe, as a process: it takes the layers on and tries them, in milliseconds.
"""

import subprocess
import sys

from kernelmcp.config import Settings
from kernelmcp.errors import LayersMissing
from kernelmcp.pool import OWN_KERNELSPEC

PROBE_SECONDS = 30.0


ADVICE = "`kernelmcp doctor` shows what it has; take the layer out of required_layers to run without it."


def check_layers(settings: Settings) -> None:
    """Raises `LayersMissing`."""
    check_kernelspec(settings)
    required = list(settings.policy.required_layers)
    if not required:
        return
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "kernelmcp_kernel.probe", *required],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise LayersMissing(
            f"required_layers: what this machine has could not be found out: {exc}", "Install kernelmcp again."
        ) from exc
    if done.returncode != 0:
        lacking = ", ".join(done.stdout.split()) or (done.stderr.strip().splitlines() or ["the probe ended"])[-1]
        raise LayersMissing(f"required_layers: this machine does not have {lacking}", ADVICE)


def check_kernelspec(settings: Settings) -> None:
    """Nobody can say what another kernel than our own has. Raises `LayersMissing`."""
    required, spec = settings.policy.required_layers, settings.config.kernels.kernelspec
    if required and spec != OWN_KERNELSPEC:
        raise LayersMissing(
            f"required_layers: {spec!r} is not kernelmcp's own kernelspec, so none of {', '.join(required)} is sure",
            f"Set kernels.kernelspec to {OWN_KERNELSPEC!r}, or required_layers to [].",
        )
