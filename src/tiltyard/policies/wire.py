"""Conversations as the bytes of a chat request: built from a white list of keys, so that no server noise goes back."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tiltyard._optional import require
from tiltyard.errors import ConfigurationError
from tiltyard.tools.text import clean
from tiltyard.types import Message, Prompt

orjson = require("orjson", "api")

_PLAIN = frozenset({"role", "content", "name"})
_OUTGOING = {
    "assistant": frozenset({*_PLAIN, "tool_calls"}),
    "tool": frozenset({*_PLAIN, "tool_call_id"}),
}

MALFORMED = "malformed_arguments"
"""Under this key the server gets arguments that are not one JSON object: chat templates cannot take them bare."""

OWN_FIELDS = {
    "model": "give OpenAI(model=...)",
    "messages": "they are the episode's",
    "tools": "they are the environment's",
    "seed": "give the rollout a seed: each turn then has one of its own",
}

MAX_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens")


def checked_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields for the body of every request, as given.

    Raises:
        ConfigurationError: One is not for the caller to set, or asks for what a rollout cannot use.
    """
    for name, cure in OWN_FIELDS.items():
        if name in fields:
            raise ConfigurationError(f"{name!r} cannot be set for every request: {cure}")
    if fields.get("n") not in (None, 1):
        raise ConfigurationError(
            f"n must be 1, got {fields['n']!r}; for several samples of a task run several episodes"
        )
    if fields.get("stream"):
        raise ConfigurationError("stream=True is not supported: a turn is used when it is whole; leave it out")
    try:
        orjson.dumps(dict(fields))
    except TypeError as error:
        raise ConfigurationError(f"the request fields {sorted(fields)} cannot be written as JSON: {error}") from error
    return dict(fields)


def request_body(model: str, fields: Mapping[str, Any], prompt: Prompt, max_tokens: int | None) -> dict[str, Any]:
    """The body of a chat request; a bound on the tokens in `fields` holds beside `max_tokens`."""
    body: dict[str, Any] = {"model": model, "messages": [outgoing(message) for message in prompt.messages], **fields}
    if prompt.tools:
        body["tools"] = prompt.tools
    if prompt.seed is not None:
        body["seed"] = prompt.seed & 0x7FFFFFFF  # some servers keep it in 32 bits
    if max_tokens is not None:
        name = next((name for name in MAX_TOKENS_FIELDS if name in fields), MAX_TOKENS_FIELDS[0])
        body[name] = max_tokens if fields.get(name) is None else min(max_tokens, fields[name])
    return body


def token_bound(body: Mapping[str, Any]) -> int | None:
    """The bound on the answer's tokens in a chat request; None where there is none."""
    return next((body[name] for name in MAX_TOKENS_FIELDS if body.get(name)), None)


def encode(body: Mapping[str, Any]) -> bytes:
    """A body as JSON; lone surrogates in its texts become U+FFFD.

    Raises:
        TypeError: It holds a value that JSON has no form for.
    """
    try:
        return orjson.dumps(body)
    except TypeError:
        # Surrogates, and integers of more than 64 bits, which only the standard library writes.
        return clean(json.dumps(body, ensure_ascii=False)).encode()


def outgoing(message: Message) -> Message:
    """A message as the server gets it; the message itself where it has nothing but the keys of its role."""
    allowed = _OUTGOING.get(message["role"], _PLAIN)
    calls = message.get("tool_calls")
    if not calls and message.keys() <= allowed and "tool_calls" not in message:
        return message
    sent = {key: value for key, value in message.items() if key in allowed and key != "tool_calls"}
    if calls and "tool_calls" in allowed:
        sent["tool_calls"] = _outgoing_calls(calls)
    return sent


def _outgoing_calls(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    sent = []
    for call in calls:
        function = call["function"]
        entry = {"name": function["name"], "arguments": _object_text(function.get("arguments"))}
        sent.append({"id": call.get("id"), "type": "function", "function": entry})
    return sent


def _object_text(arguments: Any) -> str:
    """Arguments as the text of one JSON object, which is what servers parse back."""
    if isinstance(arguments, Mapping):
        return encode(arguments).decode()
    if not arguments:
        return "{}"
    try:
        if isinstance(orjson.loads(arguments), dict):
            return arguments
    except ValueError:
        return encode({MALFORMED: arguments}).decode()
    return encode({MALFORMED: arguments}).decode()
