"""Refuses to serve where a layer that the policy requires does not hold (`required_layers`).

Above: cli. Below: the kernel's own probe, as a process: it takes the layers on and tries them, in milliseconds.
"""

import subprocess
import sys

from kernelmcp.config import Settings
from kernelmcp.pool import OWN_KERNELSPEC

PROBE_SECONDS = 30.0


def refusal(settings: Settings) -> str | None:
    """Why this server must not start, or None."""
    required = list(settings.policy.required_layers)
    spec = settings.config.kernels.kernelspec
    if not required:
        return None
    if spec != OWN_KERNELSPEC:
        return f"required_layers: {spec!r} is not kernelmcp's own kernelspec, so none of {', '.join(required)} is sure"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kernelmcp_kernel.probe", *required],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"required_layers: what this machine has could not be found out: {exc}"
    if done.returncode == 0:
        return None
    lacking = ", ".join(done.stdout.split()) or (done.stderr.strip().splitlines() or ["the probe ended"])[-1]
    return (
        f"required_layers: this machine does not have {lacking}. `kernelmcp doctor` shows what it has;"
        " take the layer out of required_layers to run without it"
    )
