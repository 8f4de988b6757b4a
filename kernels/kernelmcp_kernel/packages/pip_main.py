"""Runs pip for another Python: `python -I pip_main.py FOLDER MARKERS_JSON STAND_IN WATCH RULES FILES pip-arguments...`.

FOLDER contains pip. STAND_IN is the file name ending of empty wheels. WATCH is a file: how long to wait for hosts
(`index.index_watch`). RULES is a file or empty: the sources that may be offered (`sources.source_candidates`). FILES is
`fetch`, or `name` for empty files with the names of the chosen ones, or `size` for such files that contain the size in
bytes of the real one, if it is known.

pip has options for the tags of a foreign platform but not for its environment markers: it would evaluate `sys_platform
== "emscripten"` for this machine. It follows addresses in package metadata (`Requires-Dist: x @ file:///...`) and
builds what it finds, which runs code: here they are refused. If the new versions of a package are unavailable, it
backtracks through all older ones, for minutes, and picks one from years ago: here it only considers new ones. This is a
separate program, because pip's modules must not be used inside another process.
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

# A version is considered if it is one of this many newest ones that satisfy the requirement, whether or not these have
# a wheel for the guest, and at most this much older than the newest. Each costs a fifth of a second.
MAX_VERSIONS = 30
MAX_AGE = timedelta(days=730)
# Rounds of one resolution. Each package takes one, each rejected version one more; without a limit, the search for an
# impossible combination would try millions.
MAX_ROUNDS = 400


# pip needs no other program here; building a stranger's source would.
_PROGRAMS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}


def _refuse_programs(event: str, arguments: object) -> None:
    if event in _PROGRAMS:
        raise PermissionError(f"{event} while packages are resolved")


def _end_with_parent() -> None:
    """Exit together with the kernel process, which holds the other end of standard input open."""
    os.read(0, 1)
    os._exit(1)


def _take_new_versions_only(released: dict[str, dict[Any, datetime | None]]) -> Callable[[Any], set[Any]]:
    """Restrict pip to new versions; return the function that selects these. Fills `released`: the versions by project,
    with their upload times, which not every index reports."""
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
        """Return whether prereleases were requested (`--pre`). None: only if there are no other versions."""
        control = evaluator._release_control
        return control and control.allows_prereleases(utils.canonicalize_name(evaluator._project_name))

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
        # A file link is from Pyodide's distribution or a wheel folder: somebody chose its version. The index's wheel of
        # this version counts too, because it declares required versions: the distribution's list has names only.
        chosen = {each.version for each in found if each.link.is_file}
        return [each for each in found if each.version in versions | chosen]

    package_finder.LinkEvaluator.evaluate_link = evaluate_link
    package_finder.CandidateEvaluator.get_applicable_candidates = applicable
    return that_count


def _give_up_sooner() -> None:
    from pip._vendor.resolvelib import Resolver

    stock: Any = vars(Resolver)["resolve"]

    def resolve(self: Any, requirements: Any, max_rounds: int = MAX_ROUNDS) -> Any:
        return stock(self, requirements, max_rounds=min(max_rounds, MAX_ROUNDS))

    Resolver.resolve = resolve


def _fetch_nothing(with_sizes: bool) -> None:
    """Write files with the names of the chosen ones, empty or containing their size."""
    from pip._internal.operations.prepare import RequirementPreparer

    def prepare(self: Any, reqs: Any, *_arguments: Any, **_options: Any) -> None:
        for each in reqs:
            each.satisfied_by = each  # so that pip does not save it; a source has no more data
            size = _size_of(self._session, each.link) if with_sizes else ""
            Path(self.download_dir, Path(each.link.filename).name).write_text(size, "ascii")

    RequirementPreparer.prepare_linked_requirements_more = prepare


def _size_of(session: Any, link: Any) -> str:
    """The file's size in bytes; empty if its server does not report it. Nothing that a server answers fails a plan."""
    with suppress(Exception):
        if link.is_file:
            return str(Path(link.file_path).stat().st_size)
        answer = session.head(link.url_without_fragment, headers={"Accept-Encoding": "identity"}, allow_redirects=True)
        size = str(answer.headers.get("content-length", ""))
        return size if answer.ok and size.isdecimal() and size.isascii() else ""
    return ""


def _fetch_stand_ins_only(ending: str) -> None:
    """If empty wheels or sources are chosen, what they represent may change the choice: download only these."""
    from pip._internal.operations.prepare import RequirementPreparer

    stock = RequirementPreparer.prepare_linked_requirements_more

    def prepare(self: Any, reqs: Any, *arguments: Any, **options: Any) -> None:
        chosen = list(reqs)
        links = [(each, each.link) for each in chosen if each.link]
        stand_ins = [each for each, link in links if link.filename.endswith(ending) or not link.is_wheel]
        for each in chosen if stand_ins else []:
            if each not in stand_ins:
                each.satisfied_by = each.get_dist()  # so that pip does not save it
        stock(self, stand_ins or chosen, *arguments, **options)

    RequirementPreparer.prepare_linked_requirements_more = prepare


def _module(package: str, name: str) -> Any:
    """Import a module from a folder beside this program, which an isolated Python does not search."""
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
    sys.path[:] = [*dict.fromkeys([*sys.path, sys.argv[1]])]  # pip may be in a folder that an isolated Python omits
    markers = json.loads(markers_json)
    from pip._vendor.packaging import markers as vendored
    from pip._vendor.packaging import requirements

    failures = _module("failures", "failure_report")
    report = failures.Report(Path(watched).parent)
    vendored.default_environment = lambda: dict(markers)  # type: ignore[assignment]
    parse = requirements.Requirement.__init__

    def parse_name(self: requirements.Requirement, requirement_string: str) -> None:
        try:
            parse(self, requirement_string)
        except RecursionError:
            raise requirements.InvalidRequirement("a requirement is nested too deeply") from None
        if self.url:
            error = requirements.InvalidRequirement(f"{self.name} is asked for by an address, not by name")
            setattr(error, failures.TOLD, {"kind": "address", "what": self.name})
            raise error

    requirements.Requirement.__init__ = parse_name
    fetch_less = (
        partial(_fetch_stand_ins_only, stand_in) if files == "fetch" else partial(_fetch_nothing, files == "size")
    )
    for improve in (_give_up_sooner, fetch_less):
        with suppress(ImportError, AttributeError):  # with another pip it is slower, but works
            improve()
    watch = _module("index", "index_watch").Watch(watched)
    with suppress(ImportError, AttributeError):
        that_count = _take_new_versions_only(watch.released)
        if rules:
            _module("sources", "source_candidates").take_part(rules, stand_in, that_count, report.refused)
    with suppress(ImportError, AttributeError):
        watch.take_part()
    with suppress(ImportError, AttributeError):
        report.take_part()
    from pip._internal.cli.main import main as pip

    sys.addaudithook(_refuse_programs)
    with report.of_failures():
        status = pip(arguments)
    if status:
        watch.look_for_indexes()
    watch.write()
    return status


if __name__ == "__main__":
    sys.exit(main())
