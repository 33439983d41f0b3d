"""Values out of a request's JSON, each checked, with a message that names the field."""

import json
from collections.abc import Mapping
from typing import Any

from tiltyard._boundary import shown
from tiltyard.sandbox.refusal import RefusedError

JsonObject = Mapping[str, Any]

MAX_DIGITS = 20


def parsed_object(data: bytes) -> dict[str, Any]:
    """A JSON object; no bytes at all are an empty one.

    Raises:
        RefusedError: It is something else.
    """
    if not data:
        return {}
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RefusedError("invalid_argument", f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RefusedError("invalid_argument", f"the body must be a JSON object, got {shown(value)}")
    return value


def text(body: JsonObject, name: str, default: str | None = None) -> str:
    """A string that a system call can take.

    Raises:
        RefusedError: It is missing and has no default, is no string, or holds a NUL or half of a surrogate pair.
    """
    value = body.get(name, default)
    if value is None and default is None:
        raise RefusedError("invalid_argument", f"{name!r} is missing")
    return checked_text(name, value)


def optional_text(body: JsonObject, name: str) -> str | None:
    """As `text`; None when it is missing.

    Raises:
        RefusedError: As `text`.
    """
    return None if body.get(name) is None else text(body, name)


def checked_text(name: str, value: object) -> str:
    """A string that a system call can take.

    Raises:
        RefusedError: It is not one.
    """
    if not isinstance(value, str):
        raise RefusedError("invalid_argument", f"{name!r} must be a string, got {shown(value)}")
    if "\0" in value:
        raise RefusedError(
            "invalid_argument", f"{name!r} holds a NUL character, which no path, argument or variable can"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RefusedError("invalid_argument", f"{name!r} holds half of a surrogate pair: {shown(value)}") from error
    return value


def texts(body: JsonObject, name: str) -> tuple[str, ...]:
    """A list of strings; missing is empty.

    Raises:
        RefusedError: It is not one.
    """
    value = body.get(name) or []
    if not isinstance(value, list):
        raise RefusedError("invalid_argument", f"{name!r} must be a list of strings, got {shown(value)}")
    return tuple(checked_text(f"{name}[{at}]", item) for at, item in enumerate(value))


def text_mapping(body: JsonObject, name: str) -> dict[str, str]:
    """An object whose values are strings; missing is empty.

    Raises:
        RefusedError: It is not one.
    """
    value = body.get(name) or {}
    if not isinstance(value, dict):
        raise RefusedError("invalid_argument", f"{name!r} must be an object of strings, got {shown(value)}")
    return {checked_text(f"{name} key", key): checked_text(f"{name}[{key!r}]", item) for key, item in value.items()}


def variables(body: JsonObject, name: str) -> dict[str, str]:
    """Environment variables; missing is none.

    Raises:
        RefusedError: A name is empty or holds `=`, or one is not a string.
    """
    found = text_mapping(body, name)
    for key in found:
        if not key or "=" in key:
            raise RefusedError("invalid_argument", f"{key!r} cannot name an environment variable (in {name!r})")
    return found


def digits(given: str) -> int | None:
    """A number that a header or a query writes in plain digits, not too many of them; None when it does not."""
    return int(given) if given.isascii() and given.isdecimal() and len(given) < MAX_DIGITS else None


def integer(body: JsonObject, name: str, default: int | None = None) -> int:
    """A whole number; the wire writes long ones as strings.

    Raises:
        RefusedError: It is missing and has no default, or is none.
    """
    value = body.get(name, default)
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < MAX_DIGITS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RefusedError("invalid_argument", f"{name!r} must be a whole number, got {shown(value)}")
    return value


def flag(body: JsonObject, name: str, *, default: bool = False) -> bool:
    """A truth value; missing and null are the default.

    Raises:
        RefusedError: It is something else.
    """
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RefusedError("invalid_argument", f"{name!r} must be true or false, got {shown(value)}")
    return value


def nested(body: JsonObject, name: str) -> dict[str, Any]:
    """An object inside; missing is empty.

    Raises:
        RefusedError: It is something else.
    """
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RefusedError("invalid_argument", f"{name!r} must be an object, got {shown(value)}")
    return value
