"""What an MCP tool answered, as text for a model."""

import json
from collections.abc import Sequence
from typing import Any

from tiltyard.tools.text import as_text, clean


def content_text(content: Sequence[Any], structured: Any = None) -> str:
    """The blocks of a result as text, one after the other; what is not text leaves a line that says what it was.

    Structured content is added as JSON, unless the text says it already, as servers are told to do.
    """
    pieces = [_block_text(block) for block in content]
    if structured is not None and not _said(structured, pieces):
        pieces.append(as_text(_unwrapped(structured)))
    return clean("\n".join(pieces))


def _block_text(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type in ("image", "audio"):
        return f"[{block.type}: {block.mime_type}, {len(block.data) * 3 // 4} bytes, not shown]"
    if block.type == "resource":
        inside = block.resource
        if isinstance(text := getattr(inside, "text", None), str):  # text and binary resources are two classes
            return f"[resource: {inside.uri}]\n{text}"
        size = len(inside.blob) * 3 // 4
        return f"[resource: {inside.uri}, {inside.mime_type or 'unknown type'}, {size} bytes, not shown]"
    if block.type == "resource_link":
        about = f": {block.description}" if block.description else ""
        return f"[resource: {block.uri} ({block.name}){about}]"
    return f"[{block.type}: a kind of content that cannot be shown]"


def _said(structured: Any, pieces: Sequence[str]) -> bool:
    """Whether the text says what the structured content does."""
    values = [_loaded(piece) for piece in pieces]
    told = [structured, _unwrapped(structured)]
    if not pieces:
        return structured in ({}, {"result": None})
    return any(value in (values, values[0] if len(values) == 1 else None, "\n".join(pieces)) for value in told)


def _unwrapped(structured: Any) -> Any:
    """The value inside `{"result": value}`, which servers put around what is not an object."""
    return structured["result"] if isinstance(structured, dict) and structured.keys() == {"result"} else structured


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
