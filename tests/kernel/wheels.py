"""Wheels made by the tests, and an index on this machine that serves them."""

from __future__ import annotations

import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# Nothing listens there.
DEAD_INDEX = "http://127.0.0.1:9/simple/"


def make_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    requires: tuple[str, ...] = (),
    tag: str = "py3-none-any",
    files: Mapping[str, str | bytes] | None = None,
    metadata: str = "",
) -> Path:
    """A wheel with one module of its name, which knows its version; `files` are added as they are named."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    lines = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {each}" for each in requires),
    ]
    wheel = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.py", f"version = {version!r}\n")
        archive.writestr(f"{info}/METADATA", "\n".join(lines) + "\n" + metadata)
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "../../../../etc/passwd,sha256=AAAA,7\nnot-there.py,,\n")  # lies
        for path, content in (files or {}).items():
            archive.writestr(path, content)
    return wheel


# A build backend in the source itself, which needs nothing from an index. NAME and VERSION go before it.
BACKEND = """
import os, zipfile

def wheel(folder, files, name=NAME, version=VERSION):
    info = f"{name}-{version}.dist-info"
    own = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    file = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, file), "w") as archive:
        for path, content in (own | files).items():
            archive.writestr(path, content)
    return file

def build_wheel(folder, config_settings=None, metadata_directory=None):
    """
PURE_BODY = "return wheel(folder, {NAME + '.py': f'version = {VERSION!r}'})"


def make_source(
    folder: Path,
    name: str,
    version: str = "1.0",
    body: str = PURE_BODY,
    files: Mapping[str, str | bytes] | None = None,
    requires: tuple[str, ...] = (),
    backend: str | None = None,
) -> Path:
    """A source whose own backend builds it by `body`; or with this backend of the index's, and these files."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"requires = {list(requires)!r}", f"build-backend = {backend or 'own_backend'!r}"]
    content: dict[str, str | bytes] = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": "\n".join(["[build-system]", *lines, *([] if backend else ['backend-path = ["."]'])]) + "\n",
    }
    if backend is None:
        text = "\n    ".join(body.splitlines())
        content["own_backend.py"] = f"NAME, VERSION = {name!r}, {version!r}\n{BACKEND}{text}\n"
    source = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        for path, data in (content | dict(files or {})).items():
            raw = data.encode() if isinstance(data, str) else data
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    return source


@dataclass
class Index:
    """A package index: put a wheel into `folder(name)`, and pip finds it."""

    root: Path
    url: str
    requests: list[str] = field(default_factory=list[str])
    statuses: dict[str, int] = field(default_factory=dict[str, int])
    """What is answered for a path, instead of what is there."""
    uploads: dict[str, str] = field(default_factory=dict[str, str])
    """When files were uploaded, by their names. A folder with one of these is listed as JSON, which says it."""
    moved: set[str] = field(default_factory=set[str])
    """Paths that are redirected: with a longer query each time."""
    heads_to: str = ""
    """Where a HEAD request is redirected."""
    _free: threading.Event = field(default_factory=threading.Event)

    def folder(self, name: str) -> Path:
        place = self.root / "simple" / name
        place.mkdir(parents=True, exist_ok=True)
        return place

    def add(self, name: str, version: str = "1.0", **options: Any) -> Path:
        return make_wheel(self.folder(name), name, version, **options)

    def add_source(self, name: str, version: str = "1.0", **options: Any) -> Path:
        return make_source(self.folder(name), name, version, **options)

    def listing(self, path: str) -> bytes | None:
        """The JSON of a folder, where it is listed so."""
        files = sorted((self.root / path.strip("/")).glob("*.whl"))
        if self.uploads.keys().isdisjoint(file.name for file in files):
            return None
        listed = [{"filename": each.name, "url": each.name, "hashes": {}} for each in files]
        for each in listed:
            each["upload-time"] = self.uploads[each["filename"]]
        return json.dumps({"meta": {"api-version": "1.1"}, "name": files[0].parent.name, "files": listed}).encode()

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Meanwhile no request for the package `stalled` is answered."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def wait(self) -> None:
        self._free.wait()


@contextmanager
def serve_index(root: Path) -> Iterator[Index]:
    """Folders listed as http.server does it are what pip calls a simple index."""
    index = Index(root, "")

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as it is called there
            """Called for every answer; `do_GET` has noted the request."""

        def do_HEAD(self) -> None:
            if not index.heads_to:
                super().do_HEAD()
                return
            self.send_response(302)
            self.send_header("Location", index.heads_to)
            self.end_headers()

        def do_GET(self) -> None:
            index.requests.append(self.path)
            if "stalled" in self.path:
                index.wait()
            with suppress(ConnectionError):  # pip was interrupted
                if self.path.partition("?")[0] in index.moved:
                    self.send_response(302)
                    self.send_header("Location", f"{self.path}?")
                    self.end_headers()
                elif status := index.statuses.get(self.path):
                    self.send_error(status)
                elif listing := index.listing(self.path):
                    self.send_response(200)
                    self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
                    self.end_headers()
                    self.wfile.write(listing)
                else:
                    super().do_GET()

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root)))
    index.url = f"http://127.0.0.1:{server.server_port}/simple/"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
