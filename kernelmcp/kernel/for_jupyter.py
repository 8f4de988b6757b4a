"""`python -P -m kernelmcp.kernel.for_jupyter FOLDER [PATH ...]`: called by a kernel that Jupyter starts in FOLDER.

The paths are those that its process trusts: for its imports and temporary files.

Prints the settings of the user's files as a JSON object of environment variables. If they are invalid, exits with
status 2 and the reason on stderr: then no kernel starts.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from kernelmcp.config.load import load
from kernelmcp.config.models import Values, Volume
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ConfigurationError
from kernelmcp.files.volumes import INSIDE, check_visible, check_volumes
from kernelmcp.kernel.environment import guest_environment

EXIT_CONFIGURATION = 2
NOTEBOOK = "notebook"
"""The name of the volume that is the notebook's folder."""
# Modes to try for a setting, in order; the next one is tried if a mode would expose protected files.
MODES: dict[str, tuple[Literal["ro", "rw"], ...]] = {"private": (), "read": ("ro",), "write": ("rw", "ro")}


def jupyter_environment(settings: Settings, folder: Path, trusted: Sequence[Path] = ()) -> dict[str, str]:
    """The variables of a kernel process. Raises `ConfigurationError`.

    If a folder may not be shown as `jupyter_folder` says (it holds the settings, or is a home directory), it is shown
    as far as allowed, and KERNELMCP_FOLDER_NOTE has the reason."""
    check_volumes(settings)
    asked = settings.config.kernels.jupyter_folder
    if asked != "private" and NOTEBOOK in settings.config.volumes.all:
        raise ConfigurationError(
            f"volumes.{NOTEBOOK} and the folder of kernels.jupyter_folder are two directories at {INSIDE}/{NOTEBOOK}",
            "Give the volume another name.",
        )
    found: dict[str, str] = {}
    for mode in MODES[asked]:
        try:
            settings = _with_folder(settings, Volume(path=folder, mode=mode), trusted)
        except ConfigurationError as exc:
            reason = exc.message.removeprefix(f"volumes.{NOTEBOOK}: ")
            found.setdefault("KERNELMCP_FOLDER_NOTE", f'jupyter_folder = "{asked}" is not possible here: {reason}')
        else:
            found["KERNELMCP_WORKING_DIRECTORY"] = f"{INSIDE}/{NOTEBOOK}"
            break
    return {**guest_environment(settings, settings.policy.default_flavor), **found}


def _with_folder(settings: Settings, volume: Volume, trusted: Sequence[Path]) -> Settings:
    """Add the folder's volume. Raises `ConfigurationError`."""
    held = [path for path in trusted if path.resolve().is_relative_to(volume.path.resolve())]
    if volume.mode == "rw" and held:
        raise ConfigurationError(f"the kernel's own process uses {held[0]}", "Remove it from PYTHONPATH or TMPDIR.")
    if not str(volume.path).isprintable():  # an untrusted folder; the kernel's messages contain its name
        raise ConfigurationError(f"{str(volume.path)!r} has a character that cannot be printed", "Rename the folder.")
    check_visible(NOTEBOOK, volume.path)
    volumes = settings.config.volumes.model_copy(update={NOTEBOOK: volume})
    config = settings.config.model_copy(update={"volumes": volumes})
    changed = Settings(Values(config=config, policy=settings.policy), settings.sources)
    check_volumes(changed)
    return changed


def main(argv: Sequence[str]) -> int:
    try:
        folder, *trusted = map(Path, argv)
        found = jupyter_environment(load(), folder, trusted)
    except ConfigurationError as exc:
        sys.stderr.write(f"kernelmcp: {exc.to_text()}\n")
        return EXIT_CONFIGURATION
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
