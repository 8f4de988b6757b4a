"""Runs pip for another Python: `python -I pip_main.py FOLDER MARKERS_JSON STAND_IN pip-arguments...`.

FOLDER is the one that pip is imported from; STAND_IN is how the names of wheels end that have nothing in them. pip has
options for the tags of a foreign platform but none for its environment markers: it would judge
`sys_platform == "emscripten"` by this machine. It follows addresses in the metadata of packages
(`Requires-Dist: x @ file:///...`), where it builds what it finds, which runs code: here they are refused. And where the
new versions of a package cannot be had it goes back through all older ones, for minutes, and takes one from years ago:
here only new ones are looked at. A program of its own, because pip's modules are not to be used within another process.
"""

# pyright: reportPrivateUsage=false

import json
import os
import sys
import threading
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

# A version is looked at when it is one of so many newest that are asked for, whether or not these have a wheel for the
# guest, and not so much older than the newest. Each costs a fifth of a second.
MAX_VERSIONS = 30
MAX_AGE = timedelta(days=730)
# Of a resolution. Each package takes one, each version that does not do another; where they do not fit at all the
# search would go through millions.
MAX_ROUNDS = 400


def _end_with_parent() -> None:
    """End when the kernel process does, which holds the other end of standard input open."""
    os.read(0, 1)
    os._exit(1)


def _take_new_versions_only() -> None:
    from pip._internal.index import package_finder
    from pip._vendor.packaging import utils

    released: dict[str, dict[Any, datetime | None]] = {}  # versions by project, with when: not every index knows it
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

    def applicable(self: Any, candidates: Any) -> Any:
        found = stock(self, candidates)
        times = released.get(utils.canonicalize_name(self._project_name), {})
        versions = sorted(self._specifier.filter(times, prereleases=with_prereleases(self)))[-MAX_VERSIONS:]
        newest = times[versions[-1]] if versions else None

        def is_new(candidate: Any) -> bool:
            if candidate.link.is_file:  # of Pyodide's distribution, of a wheel folder: somebody chose it
                return True
            time = times.get(candidate.version)
            return candidate.version in versions and not (newest and time and time < newest - MAX_AGE)

        return [candidate for candidate in found if is_new(candidate)] if versions else found

    package_finder.LinkEvaluator.evaluate_link = evaluate_link
    package_finder.CandidateEvaluator.get_applicable_candidates = applicable


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


def _fetch_stand_ins_only(ending: str) -> None:
    """When the choice has wheels with nothing in them, what these stand for may change it: fetch nothing else yet."""
    from pip._internal.operations.prepare import RequirementPreparer

    stock = RequirementPreparer.prepare_linked_requirements_more

    def prepare(self: Any, reqs: Any, *arguments: Any, **options: Any) -> None:
        chosen = list(reqs)
        stand_ins = [each for each in chosen if each.link and each.link.filename.endswith(ending)]
        for each in chosen if stand_ins else []:
            if each not in stand_ins:
                each.satisfied_by = each.get_dist()  # so that it is not saved
        stock(self, stand_ins or chosen, *arguments, **options)

    RequirementPreparer.prepare_linked_requirements_more = prepare


def main() -> int:
    """Run pip, for as long as the parent lives."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.path[:] = [*dict.fromkeys([*sys.path, sys.argv[1]])]  # it may be in a folder that an isolated Python leaves out
    markers = json.loads(sys.argv[2])
    from pip._vendor.packaging import markers as vendored
    from pip._vendor.packaging import requirements

    vendored.default_environment = lambda: dict(markers)  # type: ignore[assignment]
    parse = requirements.Requirement.__init__

    def parse_name(self: requirements.Requirement, requirement_string: str) -> None:
        parse(self, requirement_string)
        if self.url:
            raise requirements.InvalidRequirement(f"{self.name} is asked for by an address, not by name")

    requirements.Requirement.__init__ = parse_name
    for improve in (_take_new_versions_only, _log_little, _give_up_sooner, lambda: _fetch_stand_ins_only(sys.argv[3])):
        with suppress(ImportError, AttributeError):  # a pip that is made otherwise is slower, and works
            improve()
    from pip._internal.cli.main import main as pip

    return pip(sys.argv[4:])


if __name__ == "__main__":
    sys.exit(main())
