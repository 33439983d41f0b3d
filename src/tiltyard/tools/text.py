"""Any value as text that a tokenizer, a request and a log can take."""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from tiltyard._boundary import guarded
from tiltyard.errors import ToolCrashError

_SURROGATE = re.compile("[\ud800-\udfff]")


def as_text(value: Any) -> str:
    """A value as text: strings as they are, None as "", bytes decoded, the rest as JSON.

    Lone surrogates become U+FFFD. Terminal escapes are kept. What cannot be shown becomes a line that
    says so: the model goes on without it.
    """
    if isinstance(value, str):
        return clean(value)
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    try:
        return clean(json.dumps(value, ensure_ascii=False, default=_plain))
    except (TypeError, ValueError, RecursionError, ToolCrashError) as error:
        return f"[a result of type {type(value).__name__} that cannot be shown as text: {str(error)[:200]}]"


def clean(text: str) -> str:
    """The text with lone surrogates replaced by U+FFFD, so that it can be encoded."""
    if text.isascii():
        return text
    return _SURROGATE.sub("\ufffd", text)


def fields(value: Any) -> dict[str, Any] | None:
    """The fields of a mapping, a dataclass or a pydantic model; None for any other value."""
    if isinstance(value, Mapping):
        return guarded(f"a {type(value).__name__}", ToolCrashError, dict, value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    dump: Any = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        dumped: Any = guarded(f"{type(value).__name__}.model_dump", ToolCrashError, dump)
        return dict(dumped)
    return None


def _plain(value: Any) -> Any:
    """What JSON has no form for, as something that it has one for."""
    known = fields(value)
    if known is not None:
        return known
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, set | frozenset):
        return guarded(f"the {type(value).__name__}", ToolCrashError, sorted, value, key=repr)
    if hasattr(value, "tolist"):  # numpy arrays and scalars, tensors
        return guarded(f"{type(value).__name__}.tolist", ToolCrashError, value.tolist)
    if type(value).__str__ is object.__str__:
        raise TypeError("it has no text form")  # its repr would hold a memory address
    return guarded(f"{type(value).__name__}.__str__", ToolCrashError, str, value)
