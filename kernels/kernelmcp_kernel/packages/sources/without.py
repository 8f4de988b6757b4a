"""What a package can do without, left out of pip's resolution where it cannot be had. Part of `pip_main`.

Only needs that the kernel process names: a package whose needs are not met is broken, unless somebody has looked at
what they are for (`standins.without`), or Pyodide's distribution, whose file it is, has it without them, or with
another version.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

WITHOUT = "kernelmcp-without"
ANOTHER = "kernelmcp-another"


class Tables(NamedTuple):
    """By the name of a package: what it is `dispensable` for it; and of a file of the `distribution` that is at hand,
    its version and what it needs there."""

    dispensable: Mapping[str, Sequence[str]]
    distribution: Mapping[str, Sequence[str]]

    def can_be_left_out(self, candidate: Any, need: Any) -> bool:
        listed = self._listed(candidate)
        if need.project_name in self.dispensable.get(candidate.project_name, ()):
            return True
        return listed is not None and need.project_name not in listed

    def may_be_another(self, candidate: Any, need: Any) -> bool:
        return need.project_name in (self._listed(candidate) or ())

    def _listed(self, candidate: Any) -> Sequence[str] | None:
        """What the distribution says that this very file of it needs."""
        version, *needs = self.distribution.get(candidate.project_name, ("",))
        link = getattr(candidate, "base", candidate).source_link
        return needs if link is not None and link.is_file and str(candidate.version) == version else None


def leave_out(tables: Tables) -> None:
    """Have pip look whether there is what these packages can do without, before it needs it. Raises ImportError,
    AttributeError where this pip is made otherwise: then it needs all."""
    from pip._internal.resolution.resolvelib.provider import PipProvider

    stock = PipProvider.get_dependencies
    told: set[str] = set()

    def say(what: str, candidate: Any, need: Any) -> None:
        line = f"{what} {candidate.project_name} {need.project_name}\n"
        if line not in told:
            told.add(line)
            sys.stdout.write(line)
            sys.stdout.flush()

    def get_dependencies(self: Any, candidate: Any) -> list[Any]:
        kept: list[Any] = []
        for need in stock(self, candidate):
            out, another = tables.can_be_left_out(candidate, need), tables.may_be_another(candidate, need)
            if not (out or another) or _is_there(self, need):
                kept.append(need)
            elif out:
                say(WITHOUT, candidate, need)
            else:
                kept += other_version(self, candidate, need) or [need]
        return kept

    def other_version(provider: Any, candidate: Any, need: Any) -> list[Any]:
        plain = list(provider._factory.make_requirements_from_spec(need.project_name, None))
        if not all(_is_there(provider, each) for each in plain):
            return []
        say(ANOTHER, candidate, need)
        return plain

    PipProvider.get_dependencies = get_dependencies


def _is_there(provider: Any, need: Any) -> bool:
    from pip._internal.exceptions import CommandError

    ireq = need.get_candidate_lookup()[1]  # None: it is a candidate already
    if ireq is None:
        return True
    try:
        found = provider._factory._finder.find_best_candidate(need.project_name, ireq.specifier)
    except CommandError:  # of the distribution, whose file cannot be had
        return False
    return found.best_candidate is not None
