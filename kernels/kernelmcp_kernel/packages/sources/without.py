"""What a package can do without, left out of pip's resolution where it cannot be had. Part of `pip_main`.

Only needs that the kernel process names (`standins.without`): a package whose needs are not met is broken, unless
somebody has looked at what it is needed for.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

WITHOUT = "kernelmcp-without"


def leave_out(dispensable: Mapping[str, Sequence[str]]) -> None:
    """Have pip look whether there is what these packages can do without, before it needs it. Raises ImportError,
    AttributeError where this pip is made otherwise: then it needs all."""
    from pip._internal.exceptions import CommandError
    from pip._internal.resolution.resolvelib.provider import PipProvider

    stock = PipProvider.get_dependencies
    told: set[tuple[str, str]] = set()

    def is_there(provider: Any, need: Any) -> bool:
        ireq = need.get_candidate_lookup()[1]  # None: it is a candidate already
        if ireq is None:
            return True
        try:
            found = provider._factory._finder.find_best_candidate(need.project_name, ireq.specifier)
        except CommandError:  # of the distribution, whose file cannot be had
            return False
        return found.best_candidate is not None

    def get_dependencies(self: Any, candidate: Any) -> list[Any]:
        needs = list(stock(self, candidate))
        name = candidate.project_name
        left = [need for need in needs if need.project_name in dispensable.get(name, ()) and not is_there(self, need)]
        for need in left:
            if (name, need.project_name) not in told:
                told.add((name, need.project_name))
                sys.stdout.write(f"{WITHOUT} {name} {need.project_name}\n")
                sys.stdout.flush()
        return [need for need in needs if need not in left]

    PipProvider.get_dependencies = get_dependencies
