"""Runs pip for another Python: `python -I pip_main.py FOLDER MARKERS_JSON STAND_IN WATCH RULES FILES pip-arguments...`.

FOLDER has pip. STAND_IN is the ending of the names of wheels that have nothing in them. WATCH is a file: how long to
wait for hosts (`index.watch`). RULES is a file, or nothing: which sources may be offered (`sources.in_pip`). FILES is
`fetch`; or `name` for files with the names of those that were chosen, and nothing in them; or `size` for such files
with the number of bytes that each would have, where it is told.

pip has options for the tags of a foreign platform but none for its environment markers: it would judge
`sys_platform == "emscripten"` by this machine. It follows addresses in the metadata of packages (`Requires-Dist: x @
file:///...`), where it builds what it finds, which runs code: here they are refused. And where the new versions of a
package cannot be had it goes back through all older ones, for minutes, and takes one from years ago: here only new ones
are looked at. A program of its own, because pip's modules are not to be used within another process.
"""

# pyright: reportPrivateUsage=false

import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

# A version is looked at when it is one of so many newest that are asked for, whether or not these have a wheel for the
# guest, and not so much older than the newest. Each costs a fifth of a second.
MAX_VERSIONS = 30
MAX_AGE = timedelta(days=730)
# Of a resolution. Each package takes one, each version that does not do another; where they do not fit at all the
# search would go through millions.
MAX_ROUNDS = 400


# Nothing that pip does here needs another program; building what a stranger made would.
_PROGRAMS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}


def _refuse_programs(event: str, arguments: object) -> None:
    if event in _PROGRAMS:
        raise PermissionError(f"{event} while packages are resolved")


def _end_with_parent() -> None:
    """End when the kernel process does, which holds the other end of standard input open."""
    os.read(0, 1)
    os._exit(1)


def _take_new_versions_only(released: dict[str, dict[Any, datetime | None]]) -> Callable[[Any], set[Any]]:
    """Gives the function that knows which versions of a project count. Fills `released`: the versions by project, with
    the time of their upload, which not every index knows."""
    from pip._internal.index import package_finder
    from pip._vendor.packaging import utils

    evaluate = package_finder.LinkEvaluator.evaluate_link
    stock = package_finder.CandidateEvaluator.get_applicable_candidates

    def evaluate_link(self: Any, link: Any) -> Any:
        parse = utils.parse_wheel_filename if link.filename.endswith(".whl") else utils.parse_sdist_filename
        try:
            name, version = parse(link.filename)[:2]
        except (utils.InvalidSdistFilename, utils.InvalidWheelFilename):
            return evaluate(self, link)
        if name == self._canonical_name and not link.is_yanked:
            released.setdefault(name, {})[version] = getattr(link, "upload_time", None)
        return evaluate(self, link)

    def with_prereleases(evaluator: Any) -> bool | None:
        """Whether they were asked for (`--pre`). None: where there is nothing else."""
        control = getattr(evaluator, "_release_control", None)  # of pip 26; a flag before
        if control is not None:
            return control.allows_prereleases(utils.canonicalize_name(evaluator._project_name))
        return getattr(evaluator, "_allow_all_prereleases", False) or None

    def that_count(evaluator: Any) -> set[Any]:
        times = released.get(utils.canonicalize_name(evaluator._project_name), {})
        versions = sorted(evaluator._specifier.filter(times, prereleases=with_prereleases(evaluator)))[-MAX_VERSIONS:]
        newest = times[versions[-1]] if versions else None

        def is_old(time: datetime | None) -> bool:
            return newest is not None and time is not None and time < newest - MAX_AGE

        return {version for version in versions if not is_old(times[version])}

    def applicable(self: Any, candidates: Any) -> Any:
        found = stock(self, candidates)
        if not (versions := that_count(self)):
            return found
        # A file is of Pyodide's distribution, or of a wheel folder: somebody chose its version. The index's wheel of it
        # counts, too, because it says which versions it needs: the distribution's list has names only.
        chosen = {each.version for each in found if each.link.is_file}
        return [each for each in found if each.version in versions | chosen]

    package_finder.LinkEvaluator.evaluate_link = evaluate_link
    package_finder.CandidateEvaluator.get_applicable_candidates = applicable
    return that_count


def _log_little() -> None:
    """pip logs each link that it leaves out, tens of thousands, which takes a third of its time: here one of each
    project and reason."""
    from pip._internal.index.package_finder import LinkType, PackageFinder

    log = PackageFinder._log_skipped_link
    logged: set[tuple[Any, str]] = set()

    def log_first(self: Any, link: Any, result: Any, detail: str) -> None:
        kind = (result, link.filename.partition("-")[0])
        if result != LinkType.different_project and kind not in logged:
            logged.add(kind)
            log(self, link, result, detail)

    PackageFinder._log_skipped_link = log_first


def _give_up_sooner() -> None:
    from pip._vendor.resolvelib import Resolver

    stock: Any = vars(Resolver)["resolve"]

    def resolve(self: Any, requirements: Any, max_rounds: int = MAX_ROUNDS) -> Any:
        return stock(self, requirements, max_rounds=min(max_rounds, MAX_ROUNDS))

    Resolver.resolve = resolve


def _fetch_nothing(with_sizes: bool) -> None:
    """Write files with the names of those that were chosen, and nothing in them, or their size."""
    from pip._internal.operations.prepare import RequirementPreparer

    def prepare(self: Any, reqs: Any, *_arguments: Any, **_options: Any) -> None:
        for each in reqs:
            each.satisfied_by = each  # so that it is not saved; a source has no more
            size = _size_of(self._session, each.link) if with_sizes else ""
            Path(self.download_dir, Path(each.link.filename).name).write_text(size, "ascii")

    RequirementPreparer.prepare_linked_requirements_more = prepare


def _size_of(session: Any, link: Any) -> str:
    """Of the file, in bytes; empty where its server does not say."""
    from pip._vendor.requests import RequestException

    if link.is_file:
        return str(Path(link.file_path).stat().st_size)
    with suppress(RequestException):
        answer = session.head(link.url_without_fragment, headers={"Accept-Encoding": "identity"}, allow_redirects=True)
        size = answer.headers.get("content-length", "")
        return size if answer.ok and size.isdecimal() and size.isascii() else ""
    return ""


def _fetch_stand_ins_only(ending: str) -> None:
    """When the choice has wheels with nothing in them, or sources, what these stand for may change it: fetch nothing
    else yet."""
    from pip._internal.operations.prepare import RequirementPreparer

    stock = RequirementPreparer.prepare_linked_requirements_more

    def prepare(self: Any, reqs: Any, *arguments: Any, **options: Any) -> None:
        chosen = list(reqs)
        links = [(each, each.link) for each in chosen if each.link]
        stand_ins = [each for each, link in links if link.filename.endswith(ending) or not link.is_wheel]
        for each in chosen if stand_ins else []:
            if each not in stand_ins:
                each.satisfied_by = each.get_dist()  # so that it is not saved
        stock(self, stand_ins or chosen, *arguments, **options)

    RequirementPreparer.prepare_linked_requirements_more = prepare


def _module(package: str, name: str) -> Any:
    """A module of a folder beside this program, where an isolated Python does not look."""
    folder = Path(__file__).with_name(package)
    found = [str(folder)]
    spec = importlib.util.spec_from_file_location(package, folder / "__init__.py", submodule_search_locations=found)
    if spec is None:
        raise ImportError(package)
    sys.modules[package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{package}.{name}")


def main() -> int:
    """Run pip, for as long as the parent lives."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _, _, markers_json, stand_in, watched, rules, files, *arguments = sys.argv
    sys.path[:] = [*dict.fromkeys([*sys.path, sys.argv[1]])]  # it may be in a folder that an isolated Python leaves out
    markers = json.loads(markers_json)
    from pip._vendor.packaging import markers as vendored
    from pip._vendor.packaging import requirements

    vendored.default_environment = lambda: dict(markers)  # type: ignore[assignment]
    parse = requirements.Requirement.__init__

    def parse_name(self: requirements.Requirement, requirement_string: str) -> None:
        parse(self, requirement_string)
        if self.url:
            raise requirements.InvalidRequirement(f"{self.name} is asked for by an address, not by name")

    requirements.Requirement.__init__ = parse_name
    fetch_less = (
        partial(_fetch_stand_ins_only, stand_in) if files == "fetch" else partial(_fetch_nothing, files == "size")
    )
    for improve in (_log_little, _give_up_sooner, fetch_less):
        with suppress(ImportError, AttributeError):  # a pip that is made otherwise is slower, and works
            improve()
    watch = _module("index", "watch").Watch(watched)
    with suppress(ImportError, AttributeError):
        that_count = _take_new_versions_only(watch.released)
        if rules:
            _module("sources", "in_pip").take_part(rules, stand_in, that_count)
    with suppress(ImportError, AttributeError):
        watch.take_part()
    from pip._internal.cli.main import main as pip

    sys.addaudithook(_refuse_programs)
    status = pip(arguments)
    if status:
        watch.look_for_indexes()
    watch.write()
    return status


if __name__ == "__main__":
    sys.exit(main())
