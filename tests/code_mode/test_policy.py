"""What the settings say of a call, in the order in which it is decided."""

from typing import Any

import pytest

from kernelmcp.code_mode.call_policy import decide, may_use
from kernelmcp.config.upstream_settings import UpstreamSettings, UpstreamsSection
from kernelmcp.upstreams.catalogue import Tool

from .fakes import tool

READS = tool("get_deal", read_only=True)
WRITES = tool("create_deal")


def verdict(of: Tool, section: dict[str, Any] | None = None, **settings: Any) -> tuple[str, str]:
    found = decide(UpstreamSettings(command="c", **settings), UpstreamsSection(**(section or {})), of)
    return found.decision, found.rule


@pytest.mark.parametrize(
    ("of", "settings", "expected"),
    [
        (READS, {}, ("allow", "readOnlyHint")),
        (WRITES, {}, ("ask", "default")),
        (WRITES, {"default": "allow"}, ("allow", "default")),
        (READS, {"trust_annotations": False}, ("ask", "default")),
        (READS, {"default": "deny"}, ("allow", "readOnlyHint")),
        (READS, {"tools": {"get_deal": "deny", "*": "allow"}}, ("deny", "tools.get_deal")),
        (READS, {"tools": {"*": "deny", "get_*": "allow"}}, ("allow", "tools.get_*")),
        (READS, {"tools": {"get_*": "allow", "*_deal": "deny"}}, ("deny", "tools.*_deal")),
        (READS, {"tools": {"*_deal": "deny", "get_*": "allow"}}, ("deny", "tools.*_deal")),
        (WRITES, {"tools": {"CREATE_*": "allow"}}, ("ask", "default")),
        # Two patterns with as many literal characters: the stricter decision, in whichever order they stand.
        (READS, {"tools": {"get_*": "allow", "*deal": "deny"}}, ("deny", "tools.*deal")),
        (READS, {"tools": {"*deal": "deny", "get_*": "allow"}}, ("deny", "tools.*deal")),
        (READS, {"tools": {"get_*": "ask", "*deal": "allow"}}, ("ask", "tools.get_*")),
        (READS, {"tools": {"*deal": "allow", "get_*": "ask"}}, ("ask", "tools.get_*")),
        (READS, {"tools": {"get_*": "ask", "*deal": "deny"}}, ("deny", "tools.*deal")),
        (READS, {"tools": {"*deal": "deny", "get_*": "ask"}}, ("deny", "tools.*deal")),
        # A wildcard says nothing, however long it is.
        (READS, {"tools": {"get_[a-z]eal": "allow", "get_dea?": "deny"}}, ("deny", "tools.get_dea?")),
        # A name with the signs of a pattern is a name first.
        (tool("[a]"), {"tools": {"[a]": "allow"}}, ("allow", "tools.[a]")),
    ],
)
def test_exact_then_pattern_then_annotation_then_default(
    of: Tool, settings: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert verdict(of, **settings) == expected


def test_what_destroys_is_not_believed_to_only_read() -> None:
    lying = Tool("x", None, "", {}, None, True, True, None, "")
    assert verdict(lying)[0] == "ask"


def test_the_section_decides_what_the_server_does_not_say() -> None:
    assert verdict(WRITES, {"default": "deny"})[0] == "deny"
    assert verdict(READS, {"trust_annotations": False, "default": "deny"})[0] == "deny"
    assert verdict(READS, {"trust_annotations": False}, trust_annotations=True)[0] == "allow"


def test_over_http_only_who_is_named_may_use_a_server() -> None:
    for named, principal, expected in (
        (None, "local", True),
        (["token:alice"], "local", True),
        (None, "anonymous", False),
        (None, "token:alice", False),
        ([], "token:alice", False),
        (["token:alice"], "token:alice", True),
        (["token:alice"], "token:bob", False),
    ):
        assert may_use(UpstreamSettings(command="c", principals=named), principal) is expected
    assert not may_use(UpstreamSettings(command="c", disabled=True), "local")
