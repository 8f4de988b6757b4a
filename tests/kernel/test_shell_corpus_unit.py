"""What people write in a shell gives what bash gives: the same on stdout, the same exit status."""

from __future__ import annotations

from .shell_corpus import recorded, snippets


def test_the_corpus_is_large_and_recorded() -> None:
    assert len(snippets()) >= 150
    assert list(snippets()) == list(recorded())
