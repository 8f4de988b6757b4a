"""What an installation says that fails: who needs what, in a sentence, without pip's files and this machine's."""

from __future__ import annotations

import re

from kernelmcp_kernel.packages import pip_output

# Paths of this machine, what pip calls our files, and pip's own last words.
LEAKS = re.compile(r"/tmp|/home|/packages|-r |requirements\.txt|pip failed|Exception:|ERROR|\n")


def test_what_is_not_known_is_said_without_paths() -> None:
    path = "/srv/home/packages/tmp/x1/all/0/wheels/a.whl"
    for output in (
        f"ERROR: cannot do '{path}'",
        f"ERROR: Exception:\nTraceback:\nValueError: {path} and file://{path}",
    ):
        text = str(pip_output.explain(output, [], [], {}))
        assert "a.whl" in text
        assert not LEAKS.search(text)
    assert "https://a.b/c/d" in str(pip_output.explain("ERROR: cannot ask https://a.b/c/d", [], [], {}))
