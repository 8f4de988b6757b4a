"""The user's policy for calls: who may use a server, and whether a tool is allowed, needs approval, or is denied.

Decided for each call, in the server. Annotations are the upstream's own claim. Must not know sessions or MCP.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kernelmcp.config.upstream_settings import Decision, UpstreamSettings, UpstreamsSection
from kernelmcp.executions.principals import LOCAL
from kernelmcp.upstreams.catalogue import Tool

STRICTNESS: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}
_WILD = re.compile(r"\*|\?|\[[^\]]*\]")


@dataclass(frozen=True)
class Verdict:
    decision: Decision
    rule: str
    """The part of the settings that decided, for the audit."""


def may_use(settings: UpstreamSettings, principal: str) -> bool:
    """The one user of stdio may use everything; over HTTP a server's credentials would be lent to strangers."""
    return not settings.disabled and (principal == LOCAL or principal in (settings.principals or ()))


def most_specific(rules: Sequence[tuple[str, Decision]]) -> tuple[str, Decision]:
    """Of two equally specific rules, the stricter one: the order of a table means nothing."""
    return max(rules, key=lambda rule: (specificity(rule[0]), STRICTNESS[rule[1]]))


def specificity(pattern: str) -> int:
    return len(_WILD.sub("", pattern))


def decide(settings: UpstreamSettings, section: UpstreamsSection, tool: Tool) -> Verdict:
    """An exact rule, else the most specific pattern, else the annotation, else the default."""
    if (exact := settings.tools.get(tool.name)) is not None:
        return Verdict(exact, f"tools.{tool.name}")
    rules: list[tuple[str, Decision]] = list(settings.tools.items())
    matching = [rule for rule in rules if fnmatchcase(tool.name, rule[0])]
    if matching:
        pattern, found = most_specific(matching)
        return Verdict(found, f"tools.{pattern}")
    trusted = section.trust_annotations if settings.trust_annotations is None else settings.trust_annotations
    if trusted and tool.read_only and not tool.destructive:
        return Verdict("allow", "readOnlyHint")
    return Verdict(settings.default or section.default, "default")
