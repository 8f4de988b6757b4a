"""HTML and SVG of a guest are data: no notebook says that they are trusted, no resource gives them a type that runs."""

import json
from typing import Any

import nbformat
import pytest
from mcp import Client

from .support import Connect

CELL = """
from IPython.display import display
html = "<script>alert(1)</script>"
metadata = {"trusted": True, "text/html": {"trusted": True, "isolated": False}}
display({"text/html": html, "text/plain": "x"}, raw=True, metadata=metadata)
display({"image/svg+xml": "<svg onload='alert(1)'/>", "text/plain": "y"}, raw=True)
display({"application/javascript": "alert(1)"}, raw=True)
"""


def trusts(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("trusted") is True or any(trusts(item) for item in value.values())
    return isinstance(value, list) and any(trusts(item) for item in value)


async def read(client: Client, uri: str) -> tuple[str | None, str]:
    (content,) = (await client.read_resource(uri)).contents
    return content.mime_type, content.text  # type: ignore[union-attr]  # a blob has none, and fails the test


@pytest.mark.anyio
async def test_html_of_a_guest_is_untrusted_data(connect: Connect) -> None:
    async with connect() as client:
        result = (await client.call_tool("execute_code", {"code": CELL, "session_id": "html"})).structured_content
        assert result is not None
        outputs = [await read(client, output["uri"]) for output in result["outputs"]]
        _, text = await read(client, "kernelmcp://sessions/html/notebook")
    assert [mime for mime, _ in outputs] == ["application/json"] * 3
    notebook = json.loads(text)
    nbformat.validate(notebook)
    assert "<script>" in text
    assert not trusts(notebook)
    assert "signature" not in notebook["metadata"]
