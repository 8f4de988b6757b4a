"""Omits optional dependencies from pip's resolution if they are unavailable. Part of `pip_main`.

Only those that the kernel process lists: a package with unmet requirements is broken, unless somebody has checked what
they are for (`standins.known_packages`), or Pyodide's distribution, which has the file, works without them, or with
another version. Omissions are written to a file: pip's output also contains hostile text.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

WITHOUT = "without"
ANOTHER = "another"


class Tables(NamedTuple):
    """By package name: `dispensable`: its optional dependencies; `distribution`: for a file that is at hand, its
    sha256, its version, and its dependencies there. `file`: where omissions are written."""

    dispensable: Mapping[str, Sequence[str]]
    distribution: Mapping[str, Sequence[str]]
    file: Path

    def can_be_left_out(self, candidate: Any, need: Any) -> bool:
        if need.project_name in self.dispensable.get(candidate.project_name, ()):
            return True
        listed = self._listed(candidate)
        return listed is not None and need.project_name not in listed

    def listed_version(self, candidate: Any, need: Any) -> str | None:
        """The version of a dependency that the distribution has with its file of this package."""
        if need.project_name not in (self._listed(candidate) or ()) or need.project_name not in self.distribution:
            return None
        return self.distribution[need.project_name][1]

    def _listed(self, candidate: Any) -> Sequence[str] | None:
        """The dependencies that the distribution lists for this very file. It lists none for extras."""
        if hasattr(candidate, "base") or candidate.source_link is None:
            return None
        sha256, _, *needs = self.distribution.get(candidate.project_name, ("", ""))
        link = candidate.source_link
        return needs if link.hash_name == "sha256" and link.hash == sha256 else None


def leave_out(tables: Tables) -> None:
    """Make pip check if the optional dependencies of these packages are available, before it requires them. Raises
    ImportError, AttributeError if this pip has a different structure: then it requires all."""
    from pip._internal.resolution.resolvelib.provider import PipProvider

    stock = PipProvider.get_dependencies
    told: list[list[str]] = []

    def tell(how: str, candidate: Any, need: Any) -> None:
        line = [how, candidate.project_name, need.project_name]
        if line not in told:
            told.append(line)
            tables.file.write_text(json.dumps(told), "utf-8")

    def get_dependencies(self: Any, candidate: Any) -> Iterator[Any]:
        for need in stock(self, candidate):
            out, version = tables.can_be_left_out(candidate, need), tables.listed_version(candidate, need)
            if not (out or version) or _is_there(self, need):
                yield need
            elif out:
                tell(WITHOUT, candidate, need)
            elif _are_there(self, listed := _in_version(self, need, version)):
                tell(ANOTHER, candidate, need)
                yield from listed
            else:
                yield need

    PipProvider.get_dependencies = get_dependencies


def _in_version(provider: Any, need: Any, version: str | None) -> list[Any]:
    """The same dependency, in the distribution's version."""
    ireq = need.get_candidate_lookup()[1]
    extras = f"[{','.join(sorted(ireq.extras))}]" if ireq.extras else ""
    text = f"{need.project_name}{extras}=={version}"
    return list(provider._factory.make_requirements_from_spec(text, ireq.comes_from))


def _are_there(provider: Any, needs: Sequence[Any]) -> bool:
    return all(_is_there(provider, each) for each in needs)


def _is_there(provider: Any, need: Any) -> bool:
    from pip._internal.exceptions import CommandError

    ireq = need.get_candidate_lookup()[1]  # None: it is a candidate already
    if ireq is None:
        return True
    specifier = ireq.specifier
    with suppress(AttributeError, KeyError):  # the session's packages are not replaced
        specifier = specifier & provider._constraints[need.project_name].specifier
    try:
        found = provider._factory._finder.find_best_candidate(need.project_name, specifier)
    except CommandError:  # from the distribution, and unavailable
        return False
    return found.best_candidate is not None
