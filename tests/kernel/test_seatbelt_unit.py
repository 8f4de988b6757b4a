"""The Seatbelt profile, read by a parser of its language. It has not been run on macOS.

The parser and the list of rules are written for this test, from Apple's own profiles and sandbox-exec(1): no library
reads the language.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmcp_kernel.sandbox import seatbelt

# What a profile of ours may consist of.
OPERATIONS = {
    "default",
    "file-link",
    "file-read*",
    "file-read-metadata",
    "file-write*",
    "file-write-create",
    "mach-lookup",
    "network*",
    "network-outbound",
    "process-exec",
    "process-fork",
    "signal",
    "sysctl-read",
    "system-socket",
}
TYPES = {"REGULAR-FILE", "DIRECTORY"}
# A real path that no test machine links elsewhere.
HOSTILE = [
    '/w"(allow default)',
    '/w") (allow file-write* (subpath "/x',
    "/w\\",
    '/w\\" (allow default) ; ',
    "/w\n(allow default)",
    "/w;comment",
    "/w #| block |#",
    "/w(subpath)",
    "/wé\U0001f4a9",
    "/w\t\x01\x7f",
]
TOKEN = re.compile(r'\s+|(?P<open>\()|(?P<close>\))|"(?P<text>(?:[^"\\]|\\.)*)"|(?P<atom>[^\s()";#\\]+)', re.DOTALL)


class Text(str):
    """A string, as opposed to a symbol."""

    __slots__ = ()


def parse(profile: str) -> list[list[object]]:
    """The profile's expressions. Raises ValueError for what is none."""
    stack: list[list[object]] = [[]]
    at = 0
    while at < len(profile):
        found = TOKEN.match(profile, at)
        if found is None:
            raise ValueError(f"no token at {profile[at : at + 20]!r}")
        at = found.end()
        if found["open"]:
            stack.append([])
        elif found["close"]:
            done = stack.pop()
            stack[-1].append(done)
        elif found["text"] is not None:
            stack[-1].append(Text(re.sub(r"\\(.)", r"\1", found["text"], flags=re.DOTALL)))
        elif found["atom"]:
            stack[-1].append(found["atom"])
    [expressions] = stack
    assert all(isinstance(each, list) for each in expressions)
    return expressions  # pyright: ignore[reportReturnType]


def check_filter(expression: object) -> None:
    assert isinstance(expression, list)
    name, *arguments = expression
    match name:
        case "subpath" | "literal":
            [path] = arguments
            assert isinstance(path, Text)
            assert path.startswith("/")
        case "require-all" | "require-not":
            assert arguments
            for each in arguments:
                check_filter(each)
        case "vnode-type":
            assert set(arguments) <= TYPES
        case "target":
            assert arguments == ["self"]
        case _:
            raise AssertionError(f"an unknown filter: {name}")


def check(profile: str) -> list[list[object]]:
    """Every expression is a rule that we know, with paths as strings."""
    version, default, imported, *rules = parse(profile)
    assert version == ["version", "1"]
    assert default == ["deny", "default"]
    assert imported == ["import", "system.sb"]
    assert isinstance(imported[1], Text)
    for action, operation, *filters in rules:
        assert action in ("allow", "deny")
        assert not isinstance(operation, Text)
        assert operation in OPERATIONS
        assert action == "deny" or operation != "default"
        for each in filters:
            check_filter(each)
    return rules


def allowed(rules: list[list[object]], operation: str, form: str) -> list[object]:
    return [rule[2][1] for rule in rules if rule[:2] == ["allow", operation] and rule[2][0] == form]  # type: ignore[index]


@pytest.mark.parametrize("network", [False, True])
def test_the_profile_of_a_guest_has_only_rules_that_are_known(network: bool) -> None:
    rules = check(seatbelt.profile(["/r"], ["/w"], ["/node"], network=network))
    assert allowed(rules, "file-read*", "subpath") == ["/r", "/node", "/w"]
    assert allowed(rules, "process-exec", "literal") == ["/node"]
    assert allowed(rules, "file-write*", "subpath") == ["/w"]
    assert (["deny", "network*"] in rules) is not network
    assert (["allow", "network-outbound"] in rules) is network
    # No rule without a path gives files away; names and attributes are visible (docs/threat-model.md).
    given_away = {rule[1] for rule in rules if rule[0] == "allow" and len(rule) == 2}
    assert given_away <= {"file-read-metadata", "sysctl-read", "network-outbound", "system-socket", "mach-lookup"}


def test_a_written_file_is_a_file_or_a_folder_and_the_denial_comes_last() -> None:
    """The last rule that matches wins."""
    rules = check(seatbelt.profile([], ["/w", "/x"], []))
    for path in ("/w", "/x"):
        about = [rule for rule in rules if f"'{path}'" in str(rule) and "write" in str(rule[1])]
        assert [rule[:2] for rule in about] == [["allow", "file-write*"], ["deny", "file-write-create"]]
        kinds = [["require-not", ["vnode-type", kind]] for kind in ("REGULAR-FILE", "DIRECTORY")]
        assert about[1][2] == ["require-all", ["subpath", path], *kinds]


@pytest.mark.parametrize("path", HOSTILE)
def test_a_hostile_name_of_a_folder_stays_a_name(path: str) -> None:
    for place in ("readable", "writable", "executable"):
        parts = {"readable": ["/r"], "writable": ["/w"], "executable": ["/x"]}
        plain = check(seatbelt.profile(**parts))
        hostile = check(seatbelt.profile(**{**parts, place: [path]}))
        before = parts[place][0]
        assert hostile == replaced(plain, before, path)


def replaced(rules: object, before: str, after: str) -> object:
    if isinstance(rules, list):
        return [replaced(each, before, after) for each in rules]
    return Text(after) if isinstance(rules, Text) and rules == before else rules


@given(st.text(st.characters(blacklist_characters="\0/", blacklist_categories=["Cs"]), min_size=1, max_size=30))
def test_any_name_of_a_folder_stays_a_name(name: str) -> None:
    path = f"/nowhere/x{name}"
    rules = check(seatbelt.profile([], [path], []))
    assert allowed(rules, "file-write*", "subpath") == [path]


def test_a_link_is_resolved_because_seatbelt_compares_real_paths(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    rules = check(seatbelt.profile([], [str(tmp_path / "link")], []))
    assert allowed(rules, "file-write*", "subpath") == [str((tmp_path / "real").resolve())]


def test_a_relative_path_is_refused_because_it_would_match_nothing() -> None:
    with pytest.raises(ValueError, match="not an absolute path"):
        seatbelt.profile(["relative"], [], [])


@pytest.mark.parametrize("broken", ["(version 1", '(allow file-read* (subpath "/a))', "(version 1))", "(a) \\ (b)"])
def test_what_is_no_profile_is_not_read_as_one(broken: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        parse(broken)
