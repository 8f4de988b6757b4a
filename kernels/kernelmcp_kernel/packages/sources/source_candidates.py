"""Sources in pip's resolution: offered if no wheel runs here, examined, and never built. Part of `pip_main`.

If a name has no wheel for the guest, or only an unavailable one of Pyodide's distribution, the newest source of the
versions that count is downloaded, and its build settings are read: sources that need a compiler are refused here. The
kernel process builds those that pip chooses from the rest. All content of a source is hostile, so it is read in this
process, which has no access to anything.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .compilers import ALWAYS_COMPILED
from .optional_dependencies import Tables, leave_out
from .reading import Refused, Source, look_at

# Maximum size of an archive, and of one for a package of the distribution: a large source there means that it compiles.
MAX_BYTES = 64 << 20
MAX_DISTRIBUTION_BYTES = 4 << 20
_CHUNK_BYTES = 1 << 18

ABSENT = "absent"
MISSED = "missed"
# Number of versions of a dependent that are tried if no version of its dependency is available.
MAX_MISSED = 8
# Refused sources of one package, when pip tries one version after the other: its other sources are not downloaded then.
MAX_REFUSED = 3
# In the list of names for which no source is used: all names.
ANY = "*"
# In the folder with the sources: how to build each, by its file name.
FACTS = "facts.json"
# Appended to the version of a stand-in.
STAND_IN = "pure"
# Beside that folder: the list of left out dependencies.
LEFT_OUT = "left-out.json"


class Rules(NamedTuple):
    """The rules from the kernel process (a file): `built`: wheels, by the sha256 of their source; `refused`: reasons,
    by the sha256 of a source, by its name in this folder, or by the project's; `absent`: unavailable packages of the
    distribution, with their versions; `never`: names for which no source is used; `files_only`: names that are never
    taken from an index; `behind`: packages whose stand-ins sort after all wheels; and the tables of
    `optional_dependencies`."""

    folder: str
    built: dict[str, str]
    refused: dict[str, str]
    absent: dict[str, str]
    never: list[str]
    files_only: list[str]
    behind: list[str]
    dispensable: dict[str, list[str]]
    distribution: dict[str, list[str]]
    stand_in: str


class Sources:
    """The sources of one run of pip: their links by name and version, and the results."""

    def __init__(self, rules: Rules, that_count: Callable[[Any], set[Any]], why: dict[str, str]) -> None:
        self._rules = rules
        self._why = why
        self._page = (Path(rules.folder).parent / "page.html").as_uri()
        self._that_count = that_count
        self._links: dict[str, dict[Any, Any]] = {}
        self._looked: dict[str, Any] = {}
        self._refused: dict[str, int] = {}
        self._missed: dict[str, int] = {}
        self.fetched: dict[str, Source] = {}

    def note(self, name: str, version: Any, link: Any) -> None:
        """Record a source."""
        self._links.setdefault(name, {}).setdefault(version, link)

    def is_foreign(self, name: str, link: Any) -> bool:
        """Return whether a link is from an index although the package must not be."""
        return name in self._rules.files_only and not self._is_ours(link)

    def _is_ours(self, link: Any) -> bool:
        """Return whether a link is from a folder, or from the kernel's page: an index may have file URLs, too."""
        return link.comes_from is None or link.comes_from == self._page

    def instead_of_stand_ins(self, name: str, found: Any) -> list[Any]:
        """The usable wheels of a package whose stand-in is only for the case that there are none."""
        wheels: list[Any] = found.applicable_candidates if name in self._rules.behind else []
        return [each for each in wheels if each.version.local != STAND_IN]

    def offer(self, finder: Any, evaluator: Any, name: str, found: Any) -> Any:
        """A candidate if there is none, or only an unavailable wheel; None if no source should be offered."""
        only_absent = bool(found.applicable_candidates)
        if not all(each.link.filename.endswith(self._rules.stand_in) for each in found.applicable_candidates):
            return None
        if only_absent and name not in self._rules.absent:
            return None
        version = None if {name, ANY} & set(self._rules.never) else self._choose(evaluator, name, found)
        candidate = self._candidate(finder, name, version, found) if version is not None else None
        if candidate is None and only_absent:
            raise _end(ABSENT, name)
        if candidate is None and version is not None and not found.all_candidates:
            self._missed[name] = self._missed.get(name, 0) + 1
            if self._missed[name] > MAX_MISSED:
                raise _end(MISSED, name)
        return candidate

    def _choose(self, evaluator: Any, name: str, found: Any) -> Any:
        links = self._links.get(name, {})
        same = [each.version for each in found.applicable_candidates if each.version in links]
        return max(same or self._that_count(evaluator) & links.keys(), default=None)

    def _candidate(self, finder: Any, name: str, version: Any, found: Any) -> Any:
        from pip._internal.models.candidate import InstallationCandidate

        if why := self._rules.refused.get(name, "needs a compiler" if name in ALWAYS_COMPILED else ""):
            self._why[name] = why
            return None
        link = self._links[name][version]
        if link.url not in self._looked and self._refused.get(name, 0) >= MAX_REFUSED:
            return None  # a project's build method seldom changes
        if link.url not in self._looked:
            try:
                is_listed = any(self._is_ours(each.link) for each in found.all_candidates)
                limit = MAX_DISTRIBUTION_BYTES if is_listed else MAX_BYTES
                self._looked[link.url] = self._look(finder._link_collector.session, name, version, link, limit)
            except Refused as error:
                self._why[name] = str(error)
                self._looked[link.url] = None
                self._refused[name] = self._refused.get(name, 0) + 1
        made = self._looked[link.url]
        return made and InstallationCandidate(name, str(version), made)

    def _look(self, session: Any, name: str, version: Any, link: Any, limit: int) -> Any:
        """A link to the wheel that was built from it, or to the downloaded file. Raises Refused."""
        from pip._internal.models.link import Link

        file = Path(self._rules.folder, f"{name}-{version}.tar.gz")
        sha256 = link.hash if link.hash_name == "sha256" else ""
        if sha256 not in self._rules.refused and self._built_of(sha256) is None:
            sha256 = _fetch(session, link, file, limit)
        if why := self._rules.refused.get(sha256):
            raise Refused(why)
        if built := self._built_of(sha256):
            return Link(built.as_uri())
        self.fetched[file.name] = look_at(file)
        facts = {name: source.facts for name, source in self.fetched.items()}
        file.with_name(FACTS).write_text(json.dumps(facts), "utf-8")
        return Link(file.as_uri())

    def _built_of(self, source: str) -> Path | None:
        """The wheel that was built from a source, unless it is damaged: a cached wheel's folder name is its sha256."""
        wheel = self._rules.built.get(source)
        if wheel is None or _sha256_of(Path(wheel)) != Path(wheel).parent.name:
            return None
        return Path(wheel)


def _sha256_of(file: Path) -> str | None:
    """The sha256, or None if the file cannot be read."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return None


def _end(why: str, name: str) -> Exception:
    """The error that makes pip stop, with its description for `failures`."""
    from pip._internal.exceptions import CommandError

    error: Any = CommandError(f"{why} {name}")
    error.kernelmcp_told = {"kind": why, "what": name}
    return error


def _say(line: str) -> None:
    """Print a line in pip's style: the kernel process reads it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _fetch(session: Any, link: Any, file: Path, limit: int) -> str:
    """Download a source, and return its sha256. Raises Refused."""
    from pip._internal.exceptions import HashMismatch
    from pip._internal.utils.hashes import Hashes

    if link.is_file:
        with open(link.file_path, "rb") as stream:
            chunks: Any = iter(lambda: stream.read(_CHUNK_BYTES), b"")
            sha256 = _save(chunks, file, limit)
    else:
        sha256 = _download(session, link, file, limit)
    hashes: Hashes | None = link.as_hashes()
    if hashes:
        try:
            hashes.check_against_path(str(file))
        except HashMismatch:
            raise Refused("is not the file that was announced (its sha256 differs)") from None
    return sha256


def _download(session: Any, link: Any, file: Path, limit: int) -> str:
    from pip._vendor.requests import RequestException
    from pip._vendor.urllib3.exceptions import HTTPError

    address = link.url.partition("#")[0]
    try:
        with session.get(address, headers={"Accept-Encoding": "identity"}, stream=True) as answer:
            answer.raise_for_status()
            if int(answer.headers.get("content-length") or 0) > limit:
                raise Refused(f"is larger than {limit >> 20} MB")
            _say(f"Downloading {link.filename}")
            return _save(answer.raw.stream(_CHUNK_BYTES, decode_content=False), file, limit)
    except (RequestException, HTTPError):
        raise Refused("could not be fetched") from None


def _save(chunks: Any, file: Path, limit: int) -> str:
    sha256 = hashlib.sha256()
    size = 0
    file.parent.mkdir(exist_ok=True)
    with file.open("wb") as sink:
        for chunk in chunks:
            size += len(chunk)
            if size > limit:
                raise Refused(f"is larger than {limit >> 20} MB")
            sha256.update(chunk)
            sink.write(chunk)
    return sha256.hexdigest()


def take_part(rules_file: str, stand_in: str, that_count: Callable[[Any], set[Any]], refused: dict[str, str]) -> None:
    """Make pip consider sources, and fill `refused`: reasons by name. Raises ImportError, AttributeError if this
    pip has a different structure: then it uses only wheels, as its options say."""
    rules = Rules(**json.loads(Path(rules_file).read_text("utf-8")), stand_in=stand_in)
    sources = Sources(rules, that_count, refused)
    _read_instead_of_building(sources)
    _look_for_them(sources)
    leave_out(Tables(rules.dispensable, rules.distribution, Path(rules_file).with_name(LEFT_OUT)))


def _read_instead_of_building(sources: Sources) -> None:
    from pip._internal.metadata import get_metadata_distribution
    from pip._internal.operations.prepare import RequirementPreparer

    stock = RequirementPreparer.prepare_linked_requirement

    def prepare(self: Any, req: Any, parallel_builds: bool = False) -> Any:
        if req.link.is_wheel:
            return stock(self, req, parallel_builds)
        source = sources.fetched[req.link.filename]  # or KeyError: another source is not ours
        req.local_file_path = str(source.file)
        return get_metadata_distribution(source.metadata, source.file.name, req.name)

    RequirementPreparer.prepare_linked_requirement = prepare


def _look_for_them(sources: Sources) -> None:
    from pip._internal.index import package_finder
    from pip._vendor.packaging import utils

    evaluate = package_finder.LinkEvaluator.evaluate_link
    find = package_finder.PackageFinder.find_best_candidate
    result = package_finder.BestCandidateResult

    def evaluate_link(self: Any, link: Any) -> Any:
        if sources.is_foreign(self._canonical_name, link):
            return package_finder.LinkType.different_project, "it is not taken from an index"
        told = evaluate(self, link)
        if told[0] == package_finder.LinkType.format_unsupported and link.filename.endswith(".tar.gz"):
            stock, self._formats = self._formats, frozenset(("source", "binary"))
            try:
                name, version = utils.parse_sdist_filename(link.filename)
                if name == self._canonical_name and evaluate(self, link)[0] == package_finder.LinkType.candidate:
                    sources.note(name, version, link)
            except utils.InvalidSdistFilename:
                pass
            finally:
                self._formats = stock
        return told

    def find_best_candidate(self: Any, project_name: str, specifier: Any = None, hashes: Any = None) -> Any:
        found = find(self, project_name, specifier, hashes)
        evaluator = self.make_candidate_evaluator(project_name, specifier, hashes)
        if real := sources.instead_of_stand_ins(utils.canonicalize_name(project_name), found):
            return result(found.all_candidates, real, evaluator.sort_best_candidate(real))
        offered = sources.offer(self, evaluator, utils.canonicalize_name(project_name), found)
        return result([*found.all_candidates, offered], [offered], offered) if offered else found

    package_finder.LinkEvaluator.evaluate_link = evaluate_link
    package_finder.PackageFinder.find_best_candidate = find_best_candidate
