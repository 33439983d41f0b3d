"""The frames that the server sends, and values that JSON has no form for in a form that it has."""

import base64
import io
import json
from collections.abc import Mapping
from typing import Any

from tiltyard._boundary import guarded
from tiltyard._optional import require
from tiltyard.errors import EnvError, ToolCrashError
from tiltyard.tools.text import clean, fields

_IMAGES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}


def frame(kind: str, data: Mapping[str, Any]) -> bytes:
    """One frame: `{"type": kind, "data": data}`. Lone surrogates in texts become U+FFFD.

    Raises:
        EnvError: A value has no form in JSON.
    """
    orjson = require("orjson", "serve")
    whole = {"type": kind, "data": data}
    try:
        return orjson.dumps(whole, default=plain, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # a lone surrogate, or an int of more than 64 bits
        pass
    try:
        return clean(json.dumps(whole, ensure_ascii=False, default=plain)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvError(f"the {kind} cannot be sent as JSON: {error}; give plain values") from error


def error_frame(message: str, code: str, **details: Any) -> bytes:
    """An error, with what the client can use of it."""
    return frame("error", {"message": message, "code": code, **details})


def observed(value: Any) -> tuple[dict[str, Any], bool]:
    """An observation as the object that the wire asks for, and whether it is only the wrapping of a plain value."""
    if isinstance(value, str):
        return {"message": value}, True
    found = fields(value)
    return ({"message": value}, True) if found is None else (found, False)


def plain(value: Any) -> Any:
    """A value that JSON has no form for: a model's fields, an array's list, an image as a part of a message.

    Raises:
        ToolCrashError: Its own code failed.
        TypeError: It has no form.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return _from_bytes(bytes(value))
    if all(hasattr(value, name) for name in ("save", "mode", "size", "getpixel")):  # an image of Pillow
        return _from_image(value)
    known = fields(value)
    if known is not None:
        return known
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if hasattr(value, "tolist"):  # tensors, and arrays that are not contiguous
        return value.tolist()
    if type(value).__str__ is object.__str__:
        raise TypeError(f"a {type(value).__name__} has no form in JSON")
    return guarded(f"{type(value).__name__}.__str__", ToolCrashError, str, value)


def _from_bytes(value: bytes) -> Any:
    for start, kind in _IMAGES.items():
        if value.startswith(start):
            return _image_part(value, kind)
    return value.decode("utf-8", "replace")


def _from_image(image: Any) -> dict[str, Any]:
    buffer = io.BytesIO()
    guarded("Image.save", ToolCrashError, image.save, buffer, format="PNG")
    return _image_part(buffer.getvalue(), "png")


def _image_part(value: bytes, kind: str) -> dict[str, Any]:
    """An image as chat messages hold it."""
    url = f"data:image/{kind};base64,{base64.b64encode(value).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}
