"""Observes the answers of package sources, in pip's process. Part of `pip_main`.

If an index answers 401, 403 or 500, or not at all, pip assumes that it does not have the package, and waits for a
silent one for the sum of its timeouts: per name, per address, per attempt. Here the kernel process limits the wait for
each answer, a host that gave none is not asked again, and failures are written to a file.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

# The observations, beside the file of the rules.
SEEN = "answers.json"
NO_ANSWER = "silent"
CERTIFICATE = "certificate"
NO_INDEX = "no index"
LARGE = "large"
# The largest real pages have a third of this.
_MAX_PAGE_BYTES = 64 << 20
_PAGE_CHUNK_BYTES = 64 << 10
_TOO_MANY = re.compile(r"too many (\d{3}) error")
_FILES = re.compile(rb"\.(?:whl|zip|tar\.[a-z0-9]+|tgz|egg)\b", re.IGNORECASE)
_NOT_FOUND = (404, 410)


class Rules(NamedTuple):
    """The rules from the kernel process (a file): the seconds to wait for an answer, and for one of a host that gave
    none a few minutes ago; these hosts; and hosts that are never asked."""

    seconds: float
    brief_seconds: float
    brief: list[str]
    never: list[str]


class Watch:
    """The answers of one run of pip."""

    def __init__(self, rules_file: str) -> None:
        self._rules = Rules(**json.loads(Path(rules_file).read_text("utf-8")))
        self._file = Path(rules_file).with_name(SEEN)
        self._silent = set(self._rules.never)
        self._answered: set[str] = set()
        self._failed: dict[str, list[list[str]]] = {}
        self._lacking: dict[str, Any] = {}  # indexes, by address, that had nothing that was asked for
        self._found: set[str] = set()
        self._session: Any = None
        self._last = ""
        self.released: dict[str, dict[Any, datetime | None]] = {}
        """The versions by project, with their upload times: None for a file on this machine, or on an old index."""

    def take_part(self) -> None:
        """Make pip's requests go through this. Raises ImportError, AttributeError if this pip is structured
        differently."""
        self._wait_no_longer()
        self._note_pages()

    def _wait_no_longer(self) -> None:
        from pip._vendor.requests import adapters, exceptions

        http: Any = adapters.HTTPAdapter
        stock = http.send

        def send(adapter: Any, request: Any, *arguments: Any, **options: Any) -> Any:
            host = host_of(request.url)
            if host in self._silent:
                self._last = NO_ANSWER
                raise exceptions.ConnectionError("it gave no answer before", request=request)
            adapter.max_retries.respect_retry_after_header = False  # it may ask for minutes
            try:
                answer = self._within(host, lambda: stock(adapter, request, *arguments, **options))
            except TimeoutError:
                self._note_silent(host)
                raise exceptions.ConnectionError("it gave no answer in time", request=request) from None
            except exceptions.RetryError as error:
                found = _TOO_MANY.search(str(error))
                self._last = found[1] if found else NO_ANSWER
                raise
            except exceptions.SSLError:
                self._last = CERTIFICATE
                raise
            except (exceptions.ConnectionError, exceptions.Timeout):
                self._note_silent(host)
                raise
            self._last = str(answer.status_code)
            self._answered.add(host)
            if options.get("stream") is False and not _read_page(answer):
                self._last = LARGE
                raise exceptions.ConnectionError("its page is too large", request=request)
            return answer

        http.send = send

    def _note_silent(self, host: str) -> None:
        self._last = NO_ANSWER
        self._silent.add(host)

    def _within(self, host: str, ask: Any) -> Any:
        """The beginning of an answer. DNS lookups and connections have no timeout in pip, so another thread makes the
        request. Raises TimeoutError."""
        made: list[Any] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                made.append(ask())
            except BaseException as error:  # noqa: BLE001 - it is raised where it was asked
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(self._rules.brief_seconds if host in self._rules.brief else self._rules.seconds)
        if failed:
            raise failed[0]
        if not made:
            raise TimeoutError
        return made[0]

    def _note_pages(self) -> None:
        from pip._internal.index import collector
        from pip._vendor.requests import exceptions

        stock = collector._get_index_content

        def get(link: Any, *, session: Any, **options: Any) -> Any:
            try:
                page = stock(link, session=session, **options)
            except exceptions.TooManyRedirects:  # pip would end
                page, self._last = None, NO_INDEX
            if urlsplit(link.url).scheme in ("http", "https"):
                self._session = session
                self._note(link.url, page)
            return page

        collector._get_index_content = get

    def _note(self, url: str, page: Any) -> None:
        root, _, name = urlsplit(url).path.rstrip("/").rpartition("/")
        address = urlunsplit((*urlsplit(url)[:2], f"{root}/", "", ""))
        if page is not None and _has_files(page):
            self._found.add(address)
        elif page is not None:  # a page for people, from a portal or a wrong address
            self._fail(name, url, NO_INDEX)
        elif self._last.isdigit() and int(self._last) in _NOT_FOUND:
            self._lacking.setdefault(address, name)
        else:
            self._fail(name, url, NO_INDEX if self._last.startswith("2") else self._last)

    def _fail(self, name: str, url: str, why: str) -> None:
        self._failed.setdefault(name, []).append([host_of(url), why])

    def look_for_indexes(self) -> None:
        """Check if hosts that had nothing that was asked for are indexes: an index answers at its own address."""
        for address, name in self._lacking.items():
            if address in self._found or host_of(address) in self._silent:
                continue
            try:
                with self._session.get(address, stream=True) as answer:
                    if answer.status_code in _NOT_FOUND:
                        self._fail(name, address, NO_INDEX)
            except Exception:  # noqa: BLE001, S112 - of requests, or of pip in its place; then nobody knows
                continue

    def write(self) -> None:
        """Report the observations to the kernel process."""
        silent = sorted(self._silent.difference(self._rules.never))
        seen = {"silent": silent, "answered": sorted(self._answered), "failed": self._failed}
        self._file.write_text(json.dumps({**seen, "releases": dict(self._releases())}), "utf-8")

    def _releases(self) -> Iterator[tuple[str, list[float]]]:
        """By project: the number of versions, and the first upload (Unix time), if all upload times are known."""
        for name, versions in self.released.items():
            times = [time.replace(tzinfo=time.tzinfo or UTC) for time in versions.values() if time is not None]
            if times and len(times) == len(versions):
                yield name, [len(times), min(times).timestamp()]


def host_of(url: str) -> str:
    """The host with its port, without credentials."""
    return urlsplit(url).netloc.rpartition("@")[2].lower()


def _read_page(answer: Any) -> bool:
    """Read an answer as requests does, but not an endless one. Returns whether it was read."""
    chunks: list[bytes] = []
    left = _MAX_PAGE_BYTES
    for chunk in answer.iter_content(_PAGE_CHUNK_BYTES):
        chunks.append(chunk)
        left -= len(chunk)
        if left < 0:
            answer.close()
            return False
    answer._content = b"".join(chunks)
    return True


def _has_files(page: Any) -> bool:
    """Return whether it is an index page: JSON always is; HTML lists files, or nothing."""
    html = page.content_type.lower().startswith("text/html")
    return not html or bool(_FILES.search(page.content)) or b"<a" not in page.content.lower()
