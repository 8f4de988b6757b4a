"""Settings of the guests' environment: kernels, the network, packages, and directories of the host."""

import os
from functools import cached_property
from pathlib import Path
from typing import Literal, Self, cast

from pydantic import ConfigDict, Field, SecretStr, field_validator, model_validator

from kernelmcp.config.allowed_hosts import check_headers, check_host
from kernelmcp.config.section import Section, UserPath, UserText


class Volume(Section):
    path: UserPath
    """The directory on the host: absolute, and neither inside the server's own directories nor around them."""
    mode: Literal["ro", "rw"] = "ro"
    """`ro`: guests may only read it; `rw`: they may write too. Read-only is the default because anybody may have
    written a guest's code."""

    @cached_property
    def place(self) -> Path:
        """`path` with links resolved when the settings were checked: a later link has no effect."""
        return self.path.resolve()


SHARED = "shared"
"""The name of the volume that is the user's own folder."""


class VolumesSection(Section):
    """Directories of the host that every guest sees: `[volumes.NAME]`, at /volumes/NAME."""

    model_config = ConfigDict(frozen=True, extra="allow")
    default_volume: UserPath | None = None
    """A folder of the user's for files in and out, which every guest sees as /volumes/shared and may write. It must
    exist; `~` is the home directory. `--folder` of `serve` and `install` creates it. Default: none."""
    # Extra fields are typed this way in pydantic's documentation.
    __pydantic_extra__: dict[str, Volume] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def all(self) -> dict[str, Volume]:
        """Every volume by its name."""
        if self.default_volume is None:
            return self.__pydantic_extra__
        return {SHARED: self._shared, **self.__pydantic_extra__}

    @cached_property
    def _shared(self) -> Volume:
        return Volume(path=cast("Path", self.default_volume), mode="rw")

    @model_validator(mode="after")
    def _one_shared(self) -> Self:
        if self.default_volume is not None and SHARED in self.__pydantic_extra__:
            raise ValueError(f"default_volume and volumes.{SHARED} are two directories at /volumes/{SHARED}")
        return self


OWN_KERNELSPEC = "kernelmcp"
"""The kernel that understands our environment variables, and whose guest has its own working directory."""


class KernelsSection(Section):
    kernelspec: str = OWN_KERNELSPEC
    """Name of the Jupyter kernelspec that sessions run."""
    start_timeout_seconds: float = Field(default=60, gt=0)
    """Time that a new kernel has to answer, seconds. A cold start takes about one second on an idle machine; the rest
    is for a busy machine and for the first start, which builds the boot image."""
    interrupt_grace_seconds: float = Field(default=6, gt=0)
    """Time after an interrupt until the server kills a kernel that has not answered, seconds. In five
    sixths of it the kernel interrupts the cell three times, then ends the guest. A guest that does not notice an
    interrupt at all ends after 3 to 5 s, so the server must wait longer than that."""
    refill_delay_seconds: float = Field(default=2.0, ge=0)
    """Pause before the pool replaces a kernel that was taken, seconds: booting competes with the first cells, of which
    `import pandas` and a plot take more than one."""
    jupyter_folder: Literal["private", "read", "write"] = "private"
    """The part of the notebook's folder that a kernel started by Jupyter sees: nothing (`private`), or its files at
    /volumes/notebook, where cells then start, to `read`, or also to `write`."""


class NetworkSection(Section):
    allow_hosts: list[str] = []
    """Hosts that the guest's requests may reach: `example.org`, `*.example.org` (all below it), an address, each with
    `:port` or for ports 80 and 443. Addresses outside the public internet are reached only when they are listed here.
    Default: none."""
    headers: dict[str, dict[str, SecretStr]] = {}
    """Per host (or `host:port`), headers that its requests get. The guest never sees them. Without a port: over https
    only. `${NAME}` in a value is an environment variable of the server."""
    timeout_seconds: float = Field(default=30, gt=0, le=300)
    """Longest time of one request with its redirects, seconds."""
    max_request_mb: int = Field(default=16, ge=1, le=20)
    """Largest body of one request, MiB. A body travels in one message to the kernel process, which takes 64 MB."""
    max_response_mb: int = Field(default=16, ge=1, le=20)
    """Largest body of one answer after unpacking, MiB."""

    @field_validator("allow_hosts")
    @classmethod
    def _check_hosts(cls, hosts: list[str]) -> list[str]:
        return [check_host(host) for host in hosts]

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, hosts: dict[str, dict[str, SecretStr]]) -> dict[str, dict[str, SecretStr]]:
        for host, headers in hosts.items():
            if check_host(host).startswith("*"):
                raise ValueError(f"{host!r} is not a single host: a secret must go to one that is named in full")
            check_headers(host, {name: value.get_secret_value() for name, value in headers.items()}, os.environ)
        return hosts


class PackagesSection(Section):
    """Packages that guests may install, and their sources. The kernel process reads it as KERNELMCP_PACKAGES, a JSON
    object."""

    enabled: bool = True
    """Allow the installation of packages."""
    auto_install: bool = True
    """Install, on a cell's `import` of a missing module, the package that has it: of Pyodide's distribution, or one of
    the few well-known ones of docs/packages.md. No others: a guessed name could be anybody's on the index."""
    build_from_source: bool = True
    """Build a package without a wheel that runs here from its source, in pure Python: in a separate process, confined
    as a guest is, with no network and none of a session's files."""
    index_url: str | None = None
    """The one package index to use. Default: as pip is configured on this machine, else PyPI."""
    pyodide_url: UserText | None = None
    """Where the files of Pyodide's own distribution (numpy and some 280 more) are: the address of a mirror, or a
    local folder. Each file is checked against the sha256 in the runtime's lock file. Default: the project's CDN."""
    wheel_folders: list[UserText] = []
    """Local folders with wheels that may be installed too; `kernelmcp build-wheel` fills one under `server.home` that
    always counts."""
    preinstalled: list[str] = []
    """Requirements that every session has from the start, imported in a boot image of their own so that importing them
    takes no time."""
    allowed: list[str] | None = None
    """Names of packages that may be asked for; what they depend on may come with them. Default: any. An allow-list
    keeps out packages whose names are one letter off."""
    denied: list[str] = []
    """Names of packages that are refused, as a dependency too."""
    resolution_ttl_seconds: float = Field(default=24 * 3600, ge=0)
    """How long the versions that a requirement resolved to are remembered, seconds. A requirement with an exact version
    is remembered for ever."""
    install_timeout_seconds: float = Field(default=300, gt=0)
    """Longest time of one installation, seconds. The largest wheels are 30 MB; the rest is for slow networks."""
    max_package_mb: int = Field(default=512, ge=1)
    """Largest size of one package when unpacked, MiB: a wheel of a megabyte can unpack to a terabyte."""
    max_cache_mb: int = Field(default=4096, ge=1)
    """Largest size of the package cache, MiB. Packages that no session uses are removed first, the longest unused of
    them before the others; when all are in use, nothing new is installed. One session may use half of it."""
