"""One connection to one server, opened for a person who waits for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

from kernelmcp.config.client_files import configured
from kernelmcp.config.settings import Settings
from kernelmcp.config.upstream_settings import UpstreamSettings
from kernelmcp.errors import ConfigurationError
from kernelmcp.upstreams.catalogue import Catalogue
from kernelmcp.upstreams.catalogue_store import FOLDER
from kernelmcp.upstreams.connect import Way, connected
from kernelmcp.upstreams.link import Link
from kernelmcp.upstreams.logins.oauth import Logins
from kernelmcp.upstreams.process_reaper import ProcessReaper


def server_named(settings: Settings, name: str) -> UpstreamSettings:
    """The settings of a server. Raises `ConfigurationError`."""
    found = configured(settings.config.upstreams).servers
    if name not in found:
        known = f"There are {', '.join(found)}." if found else "None is configured."
        raise ConfigurationError(f"there is no MCP server {name!r}", known)
    return found[name]


class Connecting:
    def __init__(self, settings: Settings, reaper: ProcessReaper) -> None:
        self.logins = Logins(settings.home / FOLDER)
        self.way = Way(
            reaper, self.logins.authorize, lambda: settings.config.upstreams.result_mb, on_link=self._take_link
        )
        self._link: Link | None = None

    @asynccontextmanager
    async def catalogue(self, name: str, server: UpstreamSettings) -> AsyncIterator[Catalogue]:
        """Its tools, while the connection is open. Raises any error of the connection."""
        async with connected(name, server, self.way, lambda: None, was_legacy=False) as (_, conversation):
            yield conversation.catalogue((await conversation.list()).tools)

    def last_words(self) -> str:
        """The stderr of its process."""
        return self._link.last_words() if self._link is not None else ""

    def _take_link(self, link: Link) -> None:
        self._link = link


@asynccontextmanager
async def open_connecting(settings: Settings) -> AsyncIterator[Connecting]:
    with closing(ProcessReaper()) as reaper:
        yield Connecting(settings, reaper)
