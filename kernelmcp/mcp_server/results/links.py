"""The URIs in a result: truncated texts, displayed objects, and changed files; each list is bounded."""

import mimetypes
import os
import re
from collections.abc import Iterable
from urllib.parse import quote

from mcp_types import ContentBlock, ResourceLink

from kernelmcp.cells.cell import Display
from kernelmcp.executions.execution import Execution
from kernelmcp.mcp_server.results.host_folders import HostFolders
from kernelmcp.mcp_server.results.printed import shown
from kernelmcp.mcp_server.schemas import ChangedFile, OutputInfo, Truncation
from kernelmcp.output.sanitize import clean
from kernelmcp.pictures.headers import IMAGE_TYPES, SVG_TYPE

MAX_LINKS = 5
MAX_LISTED_OUTPUTS = 100
# Limit for all mime types that a result lists.
MAX_LISTED_CHARS = 50_000
# Limit for paths and URIs of the files that a cell changed, in the structure and again as links.
MAX_CHANGED_CHARS = 50_000

# File types that are safe to open.
_INERT = re.compile(
    r"image/(?:png|jpeg|gif|webp|bmp|tiff)|(?:audio|video)/[\w.+-]+|text/(?:plain|csv|markdown|tab-separated-values)"
    r"|text/x-[\w.+-]+|application/(?:json|pdf|zip|gzip|x-tar|x-ipynb\+json|vnd\.(?:openxmlformats|oasis|ms-)[\w.-]+)"
)


def uri(execution: Execution, part: str) -> str:
    return f"kernelmcp://executions/{execution.id}/{part}"


def output_infos(execution: Execution, rich: list[tuple[int, Display]]) -> list[OutputInfo]:
    """The first displayed objects, as many as a result has room for."""
    infos: list[OutputInfo] = []
    room = MAX_LISTED_CHARS
    for number, display in rich[:MAX_LISTED_OUTPUTS]:
        room -= sum(map(len, display.data))
        if room < 0:
            break
        infos.append({"mime_types": list(display.data), "uri": uri(execution, f"outputs/{number}")})
    return infos


def output_links(infos: Iterable[OutputInfo]) -> list[ContentBlock]:
    return [
        ResourceLink(
            name=f"output {info['uri'].rpartition('/')[2]}", uri=info["uri"], mime_type=best_type(info["mime_types"])
        )
        for info in list(infos)[:MAX_LINKS]
    ]


def cut_links(truncated: dict[str, Truncation]) -> list[ContentBlock]:
    return [
        ResourceLink(name=f"all of {name}", uri=cut["uri"], mime_type="text/plain") for name, cut in truncated.items()
    ]


def changed_files(execution: Execution, host: HostFolders | None) -> list[ChangedFile]:
    """The changed files, as many as a result has room for: a path may have 4,000 bytes, and its URI three times as
    many."""
    found: list[ChangedFile] = []
    room = MAX_CHANGED_CHARS
    for file in execution.files_changed:
        uri = file_uri(execution.session_id, file.path)
        room -= len(file.path) + len(uri)
        if room < 0:
            break
        changed: ChangedFile = {"path": clean(file.path), "size": file.size, "uri": uri}
        if host is not None and (place := host.volume_path(file.path)) is not None:
            changed["host_path"] = clean(place)
            room -= len(place)
        found.append(changed)
    return found


def file_uri(session_id: str, path: str) -> str:
    """The URI of a file's resource. In a name that is not UTF-8 each byte is percent-encoded, and so is the first slash
    of a path in a volume: clients merge two slashes."""
    encoded = quote(os.fsencode(path), safe="/")
    return f"kernelmcp://sessions/{session_id}/files/{f'%2F{encoded[1:]}' if encoded.startswith('/') else encoded}"


def file_links(changed: list[ChangedFile]) -> list[ContentBlock]:
    return [
        ResourceLink(
            name=shown(file["path"]),
            uri=file["uri"],
            mime_type=file_type(file["path"]),
            size=file["size"],
        )
        for file in changed[:MAX_LINKS]
    ]


def file_type(path: str) -> str | None:
    """The type for a file name, unless a client could run it or render it as a document: the guest names its files."""
    guessed = mimetypes.guess_type(path)[0]
    return guessed if guessed and _INERT.fullmatch(guessed) else None


def best_type(mime_types: list[str]) -> str:
    """The type that shows most of a displayed object."""
    return next(
        (kind for kind in (*IMAGE_TYPES, SVG_TYPE, "text/html", *mime_types) if kind in mime_types), "text/plain"
    )
