"""pip's access to this machine: a few environment variables, its configuration, readable files, one writable folder.

pip reads text written by strangers (names, versions, index pages, metadata), so it is confined as a guest is: it writes
only the folder of its run, reads only itself and the user's configuration, starts no program, and has only outgoing IP
connections. If the operating system lacks a layer, that layer is omitted, as everywhere. docs/packages.md lists the
variables and files.
"""

from __future__ import annotations

import configparser
import importlib.util
import mimetypes
import os
import re
import ssl
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kernelmcp_kernel.sandbox.confined_process import Policy
from kernelmcp_kernel.sandbox.elf import linked_files
from kernelmcp_kernel.sandbox.trust import is_trusted
from kernelmcp_kernel.settings import PackageSettings

# No other environment variables are passed on: they hold secrets of the server and of the guest's requests.
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "PIP_CLIENT_CERT")
SOURCES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_TRUSTED_HOST")
BEHAVIOUR = ("PIP_PROXY", "PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT", "PIP_PRE", "PIP_USE_FEATURE", "PIP_USE_DEPRECATED")
# Files and folders: passed on only if no guest can write there.
PATHS = ("NETRC", "PIP_CONFIG_FILE", "XDG_CONFIG_HOME")

# It uses 60 MB; with the largest index pages, 200 MB.
MAX_MEMORY_MB = 2048

# System files: for name resolution, certificates, libraries and file types.
_OF_THE_SYSTEM = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/usr/share/zoneinfo",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/localtime",
    "/etc/ld.so.cache",
    "/etc/os-release",
    "/etc/lsb-release",
    "/etc/debian_version",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/passwd",
    "/dev/urandom",
    os.devnull,
)
# The executable that a python.org Python re-executes as.
_APPLE_PYTHON = tuple(map(str, Path(sys.base_prefix).glob("Resources/Python.app/Contents/MacOS/Python")))
_OPTIONS_WITH_PATHS = ("cert", "client-cert", "constraint", "find-links", "index-url", "extra-index-url")


def environment(settings: PackageSettings, scratch: Path) -> dict[str, str]:
    """The complete environment of pip. `scratch` replaces a home, configuration or temporary folder that a guest could
    write, or that does not exist."""
    found = {name: os.environ[name] for name in (*PROXIES, *SOURCES, *BEHAVIOUR) if name in os.environ}
    for name in (*CERTIFICATES, *PATHS):
        if (value := os.environ.get(name)) and is_trusted(value):
            found[name] = value
    home = os.path.expanduser("~")
    found["HOME"] = home if is_trusted(home) else str(scratch)
    if not all(map(is_trusted, _configuration(found))):
        found |= {"HOME": str(scratch), "PIP_CONFIG_FILE": os.devnull}
        found.pop("XDG_CONFIG_HOME", None)
    if settings.index_url:
        # A configured index is exclusive: other indexes of the user's configuration must not be used.
        found |= {"PIP_INDEX_URL": settings.index_url, "PIP_EXTRA_INDEX_URL": settings.index_url}
    # The files are in our own cache; pip's cache would be written by a process that hostile text may control.
    return found | {"LC_ALL": "C.UTF-8", "TMPDIR": str(scratch), "PIP_NO_CACHE_DIR": "1"}


def _configuration(environ: Mapping[str, str]) -> list[Path]:
    """The files and folders from which pip reads settings and credentials, whether or not they exist."""
    home = Path(environ["HOME"])
    named = [Path(environ[name]) for name in ("PIP_CONFIG_FILE", "NETRC") if name in environ]
    own = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip"
    mac = home / "Library" / "Application Support" / "pip"
    user = [own, mac, home / ".pip", home / ".netrc", home / "_netrc"]
    return [*named, *user, Path("/etc/pip.conf"), Path("/etc/xdg/pip"), Path(sys.prefix) / "pip.conf"]


def policy(
    program: list[str], settings: PackageSettings, environ: dict[str, str], folder: Path, also: Iterable[Path]
) -> Policy:
    """pip's confinement: it may write `folder`, and read what it needs and `also`."""
    python = Path(sys.executable).resolve()
    linked = linked_files(python)
    loaders = [path for path in linked if os.path.basename(path).startswith("ld-")]
    readable: list[str] = [
        *_OF_THE_SYSTEM,
        *linked,
        *map(str, mimetypes.knownfiles),
        *map(str, _of_python()),
        *map(str, also),
    ]
    readable += [environ[name] for name in CERTIFICATES if name in environ]
    readable += [path for path in ssl.get_default_verify_paths() if path and os.path.isabs(path)]
    configuration = [path for path in _configuration(environ) if path.exists()]
    readable += [*map(str, configuration), *_named_in(configuration, environ)]
    return Policy(
        program=program,
        descriptors=[0, 1, 2],
        environment=environ,
        readable=list(dict.fromkeys(readable)),
        writable=[str(folder)],
        executable=[str(python), sys.executable, *loaders, *_APPLE_PYTHON],
        max_data_mb=MAX_MEMORY_MB,
        max_file_mb=settings.max_package_mb,
        max_cpu_seconds=int(settings.install_timeout_seconds) + 60,
        network=True,
    )


def pip_folder() -> Path:
    """The folder that pip is imported from."""
    spec = importlib.util.find_spec("pip")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pip is not installed; run: python -m ensurepip")
    return Path(spec.origin).parents[1]


def _of_python() -> list[Path]:
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    venv = Path(sys.prefix) / "pyvenv.cfg"
    apple = [Path(sys.base_prefix)] if sys.platform == "darwin" else []  # its library is beside its folders
    return [*apple, *(Path(paths[name]) for name in names), pip_folder(), venv, Path(__file__).resolve().parents[1]]


def _named_in(files: Iterable[Path], environ: Mapping[str, str]) -> list[str]:
    """The local files and folders that the user's configuration names: wheels, indexes, certificates."""
    values = [environ.get(name, "") for name in SOURCES]
    for file in files:
        for each in sorted(file.glob("pip.conf")) if file.is_dir() else [file]:
            parser = configparser.RawConfigParser(strict=False)
            try:
                parser.read(each, "utf-8")
            except (configparser.Error, OSError, UnicodeError):
                continue  # .netrc, or something that pip will complain of
            values += [
                parser.get(name, key)
                for name in parser.sections()
                for key in _OPTIONS_WITH_PATHS
                if parser.has_option(name, key)
            ]
    words = [word for value in values for word in re.split(r"[\s,]+", value) if word]
    return [path for word in words for path in local_paths(word)]


def local_paths(word: str) -> list[str]:
    """The folder or file that a setting means; none for an address elsewhere. With a local index comes what lies beside
    it, because its pages are links to there (`simple/` and `files/`)."""
    is_address = word.startswith("file:")
    path = unquote(urlsplit(word).path) if is_address else os.path.expanduser(word)
    if not os.path.isabs(path):
        return []
    beside = Path(path).parent
    is_index = is_address and Path(path).name == "simple" and not Path.home().is_relative_to(beside)
    return [path, str(beside)] if is_index else [path]
