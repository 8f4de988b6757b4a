"""What the system refuses is an errno for the program that asked, never the guest's end."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelmcp_kernel.runtime.node import grants


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["/srv/x", "/srv/y"], ["/srv/x", "/srv/y"]),
        (["/srv/x2", "/srv/x"], ["/srv/x*"]),
        (["/srv/x22", "/srv/x2", "/srv/x", "/srv/y"], ["/srv/x*", "/srv/y"]),
        (["/srv/x", "/srv/x/below"], ["/srv/x"]),
        (["/srv/x", "/srv/x-ray", "/srv/x/below", "/srv/x.img"], ["/srv/x*"]),
    ],
)
def test_paths_that_begin_alike_become_one_grant(paths: list[str], expected: list[str]) -> None:
    assert grants(map(Path, paths)) == expected
