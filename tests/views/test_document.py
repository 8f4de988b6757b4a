"""The page of a view is one small file that needs nothing."""

import gzip
import re

import pytest

from kernelmcp.mcp_server.views.apps import LIBRARIES, document, library

# As hosts measure it, and as a page is read: in base64.
MAX_DOCUMENT_BYTES = 60_000
MAX_LIBRARY_BYTES = 1_000_000


def test_the_document_is_one_file_that_loads_nothing() -> None:
    text = document(scripts=False)
    assert len(text.encode()) <= MAX_DOCUMENT_BYTES
    assert "/*{" not in text  # each part is in it
    assert re.findall(r"https?://", text) == []
    assert not re.search(
        r"\b(?:eval|Function)\(|\bimport\(|\bfetch\(|XMLHttpRequest|innerHTML =|insertAdjacentHTML", text
    )
    assert re.findall(r"<(?:script|link|img|iframe)[^>]* (?:src|href)=", text) == []
    assert text.count("</script>") == text.count("\n<script>")


def test_scripts_of_guests_are_offered_only_where_the_operator_allows_them() -> None:
    assert 'data-scripts="allowed"' not in document(scripts=False).partition("<head>")[0]
    assert '<html data-scripts="allowed" lang="en">' in document(scripts=True)


@pytest.mark.parametrize("name", LIBRARIES.values())
def test_a_library_is_small_and_draws_without_code_from_strings(name: str) -> None:
    packed = library(name)
    assert len(packed) * 4 / 3 <= MAX_LIBRARY_BYTES
    text = gzip.decompress(packed).decode()
    assert ("globalThis.markup = " if "markup" in name else "globalThis.show = async") in text
    if "vega" in name:
        assert "globalThis.expressionInterpreter" in text
        assert "from 'vega-util'" not in text
