"""What is checked before a server starts and before changed settings are taken over, beyond the settings' types.

Above: cli, server, doctor, reload. Below: volumes, required, telemetry; loaded only where the settings need them.
"""

from kernelmcp.config import Settings
from kernelmcp.volumes import check_volumes


def check_start(settings: Settings) -> None:
    """Whether a server may start. Raises `ConfigurationError`, and `LayersMissing` last. Where layers are required it
    starts a process, which takes a tenth of a second."""
    if settings.config.telemetry.otlp_endpoint is not None:
        from kernelmcp import telemetry

        telemetry.check_installed()
    check_volumes(settings)
    if settings.policy.required_layers:
        from kernelmcp import required

        required.check_layers(settings)


def check_change(settings: Settings) -> None:
    """Whether a running server may take these over: what of `check_start` can have changed. Raises as that does."""
    check_volumes(settings)
    if settings.policy.required_layers:
        from kernelmcp import required

        required.check_kernelspec(settings)
