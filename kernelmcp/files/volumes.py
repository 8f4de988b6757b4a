"""The configured volumes: directories of the host that every guest sees at /volumes/NAME.

A guest's process gets their paths at its start, read-only or writable (enforced by Landlock and Node's permission
model), so an invalid one is rejected before anything runs.
"""

import contextlib
import os
import re
import site
import sys
import tempfile
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path

from jupyter_core.paths import jupyter_config_path, jupyter_path, jupyter_runtime_dir

from kernelmcp.config.models import SHARED, Volume
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ConfigurationError
from kernelmcp.files.home import runtime_root_of
from kernelmcp.process_start import users_umask

INSIDE = "/volumes"
SYSTEM_FOLDERS = ("/proc", "/sys", "/dev")
# Besides those on PATH: programs that a system runs, and their settings.
PROGRAM_FOLDERS = (
    *("/bin", "/boot", "/etc", "/lib", "/lib64", "/sbin", "/usr", "/var/spool"),
    *("/Applications", "/Library", "/System"),  # macOS
)
# The same in a home: what runs at login or automatically, and who may log in.
HOME_PROGRAM_FOLDERS = (
    *(".cargo", ".config", ".gnupg", ".ipython", ".jupyter", ".local/bin", ".local/lib", ".local/share/applications"),
    *(".local/share/jupyter", ".ssh", ".vim", "bin", "Library/LaunchAgents"),
)
# Created by the kernel process's directory.py, in the folder for temporary files.
PRIVATE_FOLDERS = "kernelmcp-sandboxes"
SHARED_INSIDE = f"{INSIDE}/{SHARED}"
DEFAULT = "default_volume"
# Besides those whose names begin with a dot: macOS's, and Windows' as WSL sees it.
SETTINGS_FOLDERS = ("library", "appdata", "powershell", "windowspowershell")
# A folder with one of these is a home, or a whole Windows disk.
HOME_FOLDERS = (".ssh", "AppData", "Windows", "PowerShell", "WindowsPowerShell")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


def kernel_volumes(settings: Settings) -> list[dict[str, str]]:
    """The volumes in the format of a kernel's environment."""
    return [
        {"name": name, "path": str(volume.place), "mode": volume.mode}
        for name, volume in settings.config.volumes.all.items()
    ]


def check_places(settings: Settings) -> None:
    """Check the volumes before a kernel starts. Raises `ConfigurationError` if a link has replaced a volume."""
    for name, volume in settings.config.volumes.all.items():
        if not _is_in_its_place(volume):
            raise ConfigurationError(
                f"volumes.{name} leads elsewhere than when the server started",
                "The operator must find out what changed it, and restart the server.",
                path=str(volume.path),
            )


def _is_in_its_place(volume: Volume) -> bool:
    try:
        with contextlib.suppress(FileNotFoundError):  # another check's
            volume.path.resolve(strict=True)
        return volume.path.resolve() == volume.place == volume.place.resolve()
    except (OSError, RuntimeError):  # circular links, which since Python 3.13 only a strict `resolve` refuses
        return False


def check_volumes(settings: Settings, *, there: bool = True) -> None:
    """Raises `ConfigurationError` for a volume that is invalid, or that would let a guest out of its sandbox.

    With `there` false, a directory need not exist yet."""
    section = settings.config.volumes
    # The setting's own name, for messages.
    own = section.default_volume is not None
    volumes = {DEFAULT if own and name == SHARED else name: volume for name, volume in section.all.items()}
    for name, volume in volumes.items():
        _check_path(name, volume, there)
        _check_apart(name, volume, settings)
    if own:
        check_visible(DEFAULT, volumes[DEFAULT].path)
    for (name, inner), (other, outer) in permutations(volumes.items(), 2):
        if outer.mode == "ro":
            continue
        if inner.mode == "ro" and inner.place.is_relative_to(outer.place):
            raise ConfigurationError(
                f"volumes.{name} is read-only, but it is inside volumes.{other}, which is writable",
                "Give both the same mode, or choose other directories.",
            )
        named = Path(os.path.normpath(inner.path))
        for above in (Path(os.path.normpath(outer.path)), outer.place):
            if named.is_relative_to(above) and outer.place / named.relative_to(above) != inner.place:
                raise ConfigurationError(
                    f"volumes.{name}: {inner.path} is a link inside volumes.{other}, where guests can put another",
                    "Give the directory that it leads to.",
                )


def _check_path(name: str, volume: Volume, there: bool) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"volumes.{name} is not a valid name for a volume", "Use up to 64 of the characters A-Z a-z 0-9 . _ -"
        )
    path = volume.path
    if not path.is_absolute():
        raise ConfigurationError(
            f"volumes.{name}: {path} is not an absolute path", "Give the absolute path of a directory."
        )
    if there and not _is_directory(path):
        reason = "is not a directory" if os.path.lexists(path) else "does not exist"
        raise ConfigurationError(f"volumes.{name}: {path} {reason}", "Create it, or give the path of a directory.")
    if any("\udc80" <= sign <= "\udcff" for sign in str(path.resolve())):  # Python's form of an undecodable byte
        raise ConfigurationError(
            f"volumes.{name}: {str(path)!r} is not UTF-8, which Node requires", "Rename the directory."
        )
    if any(path.resolve().is_relative_to(system) for system in SYSTEM_FOLDERS):
        raise ConfigurationError(
            f"volumes.{name}: {path} is not a directory of files", "Choose one outside of /proc, /sys and /dev."
        )
    if "*" in str(path.resolve()):
        raise ConfigurationError(
            f"volumes.{name}: {path} has a * in its path, which Node takes as a wildcard", "Rename the directory."
        )


def make_shared_folder(settings: Settings) -> None:
    """Create the user's own folder if it is missing. Raises `ConfigurationError` for one that guests must not have."""
    folder = settings.config.volumes.default_volume
    if folder is None or os.path.lexists(folder):
        return
    check_volumes(settings, there=False)
    umask = os.umask(users_umask())  # before any thread starts
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigurationError(
            f"{folder} cannot be made: {exc.strerror}", "Name an existing folder, or one that can be created."
        ) from exc
    finally:
        os.umask(umask)


def _is_directory(path: Path) -> bool:
    try:
        return path.resolve(strict=True).is_dir()
    except (OSError, RuntimeError, ValueError):  # missing, circular links, a NUL in the name
        return False


def check_visible(name: str, folder: Path) -> None:
    """Raises `ConfigurationError` unless a user's folder is one that people look into. In folders where programs keep
    their settings, a guest could write commands that they run: shells, ssh, and the MCP client itself."""
    path = folder.resolve()
    kept = [part for part in path.parts if part.startswith(".") or part.casefold() in SETTINGS_FOLDERS]
    if kept:
        raise ConfigurationError(
            f"volumes.{name}: {folder} is in {kept[0]}, where programs keep their settings",
            "Choose a folder that holds only files for the sandbox, such as ~/kernelmcp.",
        )
    held = [name for name in HOME_FOLDERS if os.path.isdir(path / name)]  # False where one may not search
    is_windows_documents = re.fullmatch(r"/mnt/[a-z]/users/[^/]+/documents", str(path).casefold()) is not None
    if held or is_windows_documents or path.name.casefold() == "users":
        raise ConfigurationError(
            f"volumes.{name}: {folder} is or holds somebody's home: {', '.join(held) or path.name}",
            "Choose a folder that holds only files for the sandbox, such as ~/kernelmcp.",
        )


def _check_apart(name: str, volume: Volume, settings: Settings) -> None:
    """Guests must not see other sessions' files and sockets, and must not write code that the server runs."""
    path = volume.place
    if volume.mode == "rw" and (held := _programs(path)) is not None:
        raise ConfigurationError(
            f"volumes.{name}: {path} would let guests write where programs and their settings are: {held}",
            "Choose a folder that holds only files for the sandbox, such as ~/kernelmcp.",
        )
    own = [settings.home, runtime_root_of(settings.config.server.runtime)]
    # Keys of kernels' sockets, and the files of kernels that Jupyter starts.
    own += [Path(jupyter_runtime_dir()), Path(tempfile.gettempdir(), f"{PRIVATE_FOLDERS}-{os.getuid()}")]
    if volume.mode == "rw":
        own += [Path(__file__).parents[1], *_kernel_package(), Path(sys.prefix), Path(sys.base_prefix)]
        own += _package_sources(settings)
        own += [file for file in _configuration(settings) if _is_below(file, path)]
        own += [folder for folder in _imported() if _is_below(folder, path)]
    for directory in (directory.resolve() for directory in own):
        if path.is_relative_to(directory) or directory.is_relative_to(path):
            raise ConfigurationError(
                f"volumes.{name}: {path} would open the server's own directory {directory} to guests",
                "Choose a directory that does not contain it and is not inside it.",
            )


def _programs(path: Path) -> Path | None:
    """A folder of programs, or of files that the system runs automatically, that contains this one or is inside it."""
    on_path = [Path(entry) for entry in os.get_exec_path() if os.path.isabs(entry)]
    of_home = [Path.home() / folder for folder in HOME_PROGRAM_FOLDERS]
    folders = {Path(os.path.realpath(folder)) for folder in (*on_path, *map(Path, PROGRAM_FOLDERS), *of_home)}
    return next((one for one in sorted(folders) if path.is_relative_to(one) or one.is_relative_to(path)), None)


def _kernel_package() -> list[Path]:
    """The folders of the kernel process's own modules."""
    spec = find_spec("kernelmcp_kernel")
    return [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []


def _package_sources(settings: Settings) -> list[Path]:
    """Folders whose files kernels use as packages, and as the list of packages."""
    packages = settings.config.packages
    named = [*packages.wheel_folders, packages.pyodide_url or ""]
    return [
        Path(one.removeprefix("file://")).absolute()
        for one in named
        if one and "://" not in one.removeprefix("file://")
    ]


def _is_below(path: Path, directory: Path) -> bool:
    return path.resolve().is_relative_to(directory)


def _imported() -> list[Path]:
    """The directories that the server, its kernels and their pip import from, and the one for temporary files."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    # `python -m kernelmcp` searches it first for this package, before any of our code could refuse.
    started_from = [os.getcwd()] if "-m" in sys.orig_argv[:-1] and not sys.flags.safe_path else []
    return [Path(entry).absolute() for entry in (*sys.path, *user, *started_from, tempfile.gettempdir())]


def _configuration(settings: Settings) -> list[Path]:
    """The configuration files of the server, its kernels and their pip; not all of them exist."""
    home = Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    pip = [config / "pip", home / ".pip", home / ".netrc", Path(os.environ.get("PIP_CONFIG_FILE") or os.devnull)]
    own = [place.path for place in settings.sources.places] if settings.sources is not None else []
    return [*own, *pip, *map(Path, jupyter_path("kernels")), *map(Path, jupyter_config_path())]
