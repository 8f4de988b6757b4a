"""Measures what a result would cost a model that calls the tool itself. Must not know sessions or MCP's types."""

from kernelmcp.output.sanitize import as_dict, as_list
from kernelmcp.upstreams.catalogue import CallResult

_STRUCTURED = b'"structuredContent"'


def model_chars(result: CallResult) -> int:
    """Number of characters. Text that is repeated as structured content counts once; base64 bytes don't count."""
    if result.value is None:
        both = result.raw is not None and _STRUCTURED in result.raw
        return result.size // 2 if both else result.size
    blocks = [as_dict(block) for block in as_list(result.value.get("content"))]
    texts = sum(len(block["text"]) for block in blocks if isinstance(block.get("text"), str))
    if texts or "structuredContent" not in result.value:
        return texts
    return result.size
