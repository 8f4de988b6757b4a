"""Describes why pip fails, as JSON for the kernel process, which words it. Part of `pip_main`.

The description is of pip's exceptions and of the objects that it resolves, never of its messages. Its `kind` selects
the sentence; `what` and `why` are about a package, a requirement or a file. `reasons` lists all parts.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

# The description, in the folder of the run.
FAILURE = "failure.json"
# The attribute of an exception with its description.
TOLD = "kernelmcp_told"
# Other errors of the system are the network's.
_OF_FILES = {
    errno.EACCES: "unreadable",
    errno.EFBIG: "large",  # the file size limit of this process
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EROFS: "read-only",
}
_NOT_FOUND = 404


class Report:
    """What one run of pip has seen, and why it failed."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FAILURE
        self._links: dict[str, dict[str, Any]] = {}
        self._versions: dict[tuple[str, str], set[Any]] = {}
        self._insecure = ""
        self.refused: dict[str, str] = {}
        """Reasons why a project's source was refused, by name."""

    def take_part(self) -> None:
        """Make pip report. Raises ImportError, AttributeError if this pip is structured differently."""
        from pip._internal.commands.download import DownloadCommand

        self._note_links()
        self._note_hosts()
        self._note_packages()
        self._describe_conflicts()
        stock = DownloadCommand.run

        def run(command: Any, options: Any, arguments: Any) -> int:
            with self.of_failures():
                return stock(command, options, arguments)

        _replace(DownloadCommand, "run", run)

    @contextmanager
    def of_failures(self) -> Iterator[None]:
        """Describe the exception that ends the block."""
        try:
            yield
        except BaseException as error:
            for (name, kind), versions in self._versions.items():
                self._links.setdefault(name, {})[kind] = list(map(str, sorted(versions)))
            seen = {"links": self._links, "refused": self.refused, "insecure": self._insecure}
            self._file.write_text(json.dumps({**_described(error), **seen}), "utf-8")
            raise

    def _note_links(self) -> None:
        from pip._internal.index import package_finder
        from pip._vendor.packaging.version import InvalidVersion, Version

        evaluate = package_finder.LinkEvaluator.evaluate_link
        kinds = package_finder.LinkType

        def evaluate_link(evaluator: Any, link: Any) -> Any:
            result, detail = found = evaluate(evaluator, link)
            name: str = evaluator._canonical_name
            if result == kinds.candidate:
                with suppress(InvalidVersion):
                    kind = "yanked" if link.is_yanked else "versions"
                    self._versions.setdefault((name, kind), set()).add(Version(detail))
            elif result == kinds.requires_python_mismatch:
                self._links.setdefault(name, {}).setdefault("python", detail)
            elif result == kinds.platform_mismatch or (result == kinds.format_unsupported and _is_source(link, name)):
                self._links.setdefault(name, {})["unusable"] = True
            return found

        _replace(package_finder.LinkEvaluator, "evaluate_link", evaluate_link)

    def _note_hosts(self) -> None:
        from pip._internal.network.session import PipSession

        stock = PipSession.is_secure_origin

        def is_secure_origin(session: Any, location: Any) -> bool:
            is_secure = stock(session, location)
            self._insecure = self._insecure if is_secure else urlsplit(str(location)).hostname or ""
            return is_secure

        _replace(PipSession, "is_secure_origin", is_secure_origin)

    def _note_packages(self) -> None:
        from pip._internal.resolution.resolvelib.candidates import LinkCandidate
        from pip._vendor.packaging.utils import canonicalize_name

        stock = LinkCandidate.__init__

        def prepare(candidate: Any, link: Any, template: Any, *arguments: Any, **options: Any) -> None:
            try:
                stock(candidate, link, template, *arguments, **options)
            except Exception as error:  # with some, pip tries another version
                told = {"what": template.name, **_described(error)}
                setattr(error, TOLD, told)
                self._links.setdefault(canonicalize_name(template.name), {})["failure"] = told
                raise

        _replace(LinkCandidate, "__init__", prepare)

    def _describe_conflicts(self) -> None:
        from pip._internal.exceptions import DistributionNotFound
        from pip._internal.resolution.resolvelib.factory import Factory

        def get_installation_error(factory: Any, impossible: Any, constraints: Mapping[str, Any]) -> Exception:
            error = DistributionNotFound("impossible")
            setattr(error, TOLD, _conflict(factory, impossible.causes, constraints))
            return error

        _replace(Factory, "get_installation_error", get_installation_error)


def _replace(owner: type, name: str, method: Callable[..., Any]) -> None:
    """Replace a method, whose parameters may have other names."""
    setattr(owner, name, method)


def _is_source(link: Any, name: str) -> bool:
    from pip._vendor.packaging import utils

    with suppress(utils.InvalidSdistFilename):
        return utils.parse_sdist_filename(link.filename)[0] == name
    return False


def _conflict(factory: Any, causes: Sequence[Any], constraints: Mapping[str, Any]) -> dict[str, Any]:
    from pip._internal.resolution.resolvelib.requirements import RequiresPythonRequirement

    for requirement, parent in causes:
        if isinstance(requirement, RequiresPythonRequirement) and requirement.get_candidate_lookup()[0] is None:
            return {"kind": "python", "what": parent.name, "why": f"Requires-Python {requirement.specifier}"}
    names = [requirement.name for requirement, _ in causes]
    if len(causes) == 1 and names[0] not in constraints:
        requirement, parent = causes[0]
        return {"kind": "missing", "what": _text_of(requirement), "by": parent.name if parent else ""}
    projects = {requirement.project_name for requirement, _ in causes}
    return {
        "kind": "conflict",
        "causes": [
            {"who": f"{parent.name} {parent.version}" if parent else "", "what": _text_of(requirement)}
            for requirement, parent in causes
        ],
        "constraints": [f"{name}{constraints[name].specifier}" for name in dict.fromkeys(names) if name in constraints],
        "missing": sorted(name for name in projects if not factory._has_any_candidates(name)),
    }


def _text_of(requirement: Any) -> str:
    """The requirement without its marker."""
    candidate, _ = requirement.get_candidate_lookup()
    return f"{candidate.name}=={candidate.version}" if candidate else str(requirement).partition(";")[0].strip()


def _described(error: BaseException) -> dict[str, Any]:
    from pip._internal.exceptions import PipError

    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    own = [getattr(each, TOLD, None) for each in chain]
    known = [_of_pip(each) or _of_sources(each) for each in chain]
    kind = "" if isinstance(error, PipError) else f"{type(error).__name__}: "
    return next(filter(None, [*own, *known]), {"why": f"{kind}{error}"})


def _of_pip(error: BaseException) -> dict[str, Any] | None:
    from pip._internal import exceptions

    match error:
        case exceptions.HashErrors():
            return _of_pip(error.errors[0])
        case exceptions.HashMismatch():
            return {"kind": "hash", "what": str(error.req.req) if error.req else ""}
        case exceptions.ResolutionTooDeepError():
            return {"kind": "deep"}
        case exceptions.MetadataInconsistent():
            return {"kind": "metadata", "why": f"expected {error.f_val!r}, but metadata has {error.m_val!r}"}
        case exceptions.MetadataInvalid():
            return {"kind": "metadata", "why": error.error}
        case exceptions.InvalidWheel():
            return {"kind": "wheel", "what": error.name, "why": "it is damaged, or no zip archive"}
        case exceptions.UnsupportedWheel():
            return {"kind": "wheel", "why": str(error.__context__ or error)}  # the first is without the name
        case _:
            return None


def _of_sources(error: BaseException) -> dict[str, Any] | None:
    """The description of an error of the network, or of this machine's files."""
    from pip._internal import exceptions
    from pip._vendor import requests, urllib3

    match error:
        case exceptions.NetworkConnectionError() if error.response is not None:
            status = error.response.status_code
            kind = "gone" if status == _NOT_FOUND else "status"
            return {"kind": kind, "what": _file(error.response.url), "why": str(status)}
        case requests.RequestException() | urllib3.exceptions.HTTPError() | exceptions.IncompleteDownloadError():
            url = str(getattr(getattr(error, "request", None), "url", None) or "")
            host = urlsplit(url).hostname
            return {"kind": "silent", "what": f"{_file(url)}: {host}" if host else "a package source"}
        case OSError() if error.errno == errno.ENOENT and str(error.filename).endswith(".whl"):
            return {"kind": "gone", "what": _file(str(error.filename))}
        case OSError() if error.errno in _OF_FILES:
            return {"kind": _OF_FILES[error.errno], "why": error.strerror}
        case _:
            return None


def _file(url: str) -> str:
    return PurePosixPath(urlsplit(url).path).name
