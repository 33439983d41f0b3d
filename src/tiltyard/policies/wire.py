"""Conversations as the bytes of a chat request: built from a white list of keys, so that no server noise goes back."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiltyard._optional import require
from tiltyard.errors import ConfigurationError
from tiltyard.tools.text import clean
from tiltyard.types import Message, Prompt, ToolSchema

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

MEMO = "wire.messages"
MEMO_TOOLS = "wire.tools"
"""What a prompt's memo keeps."""

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
    for name in MAX_TOKENS_FIELDS:
        bound = fields.get(name)
        if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool) or bound < 1):
            raise ConfigurationError(f"{name} must be a whole number >= 1, got {bound!r}")
    try:
        orjson.dumps(dict(fields))
        json.dumps(dict(fields), allow_nan=False)  # the one writes NaN as null, without a word
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the request fields {sorted(fields)} cannot be written as JSON: {error}") from error
    return dict(fields)


@dataclass(slots=True)
class _Encoded:
    """The messages of one conversation as JSON. Each is encoded once, so that a turn costs what is new in it."""

    text: bytes = b""
    count: int = 0
    last: Message | None = None

    def follow(self, messages: Sequence[Message]) -> bytes:
        """All messages as one JSON list."""
        if self.count > len(messages) or (self.count and messages[self.count - 1] is not self.last):
            self.text, self.count = b"", 0
        encoded = [encode(outgoing(message)) for message in messages[self.count :]]
        self.text = b",".join([self.text, *encoded] if self.count else encoded)
        self.count, self.last = len(messages), messages[-1] if messages else None
        return b"[" + self.text + b"]"


def request_body(model: str, fields: Mapping[str, Any], prompt: Prompt, max_tokens: int | None) -> dict[str, Any]:
    """The body of a chat request, for `encode`; a bound on the tokens in `fields` holds beside `max_tokens`.

    What of the prompt is encoded already is kept in its `memo`.
    """
    memo = {} if prompt.memo is None else prompt.memo
    encoded = memo.get(MEMO) or memo.setdefault(MEMO, _Encoded())
    body: dict[str, Any] = {"model": model, "messages": orjson.Fragment(encoded.follow(prompt.messages)), **fields}
    if prompt.tools:
        body["tools"] = orjson.Fragment(_encoded_tools(prompt.tools, memo))
    if prompt.seed is not None:
        body["seed"] = prompt.seed & 0x7FFFFFFF  # some servers keep it in 32 bits
    if max_tokens is not None:
        name = next((name for name in MAX_TOKENS_FIELDS if name in fields), MAX_TOKENS_FIELDS[0])
        body[name] = max_tokens if fields.get(name) is None else min(max_tokens, fields[name])
    return body


def _encoded_tools(tools: Sequence[ToolSchema], memo: dict[str, Any]) -> bytes:
    known = memo.get(MEMO_TOOLS)
    if known is None or known[0] is not tools:
        known = memo[MEMO_TOOLS] = (tools, encode(tools))
    return known[1]


def token_bound(body: Mapping[str, Any]) -> int | None:
    """The bound on the answer's tokens in a chat request; None where there is none."""
    return next((body[name] for name in MAX_TOKENS_FIELDS if body.get(name)), None)


def encode(value: Any) -> bytes:
    """A value as JSON; lone surrogates in its texts become U+FFFD.

    Raises:
        TypeError: It holds a value that JSON has no form for.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        # Surrogates, and integers of more than 64 bits, which only the standard library writes.
        return clean(json.dumps(value, ensure_ascii=False)).encode()


def outgoing(message: Message) -> Message:
    """A message as the server gets it; the message itself where it has nothing but the keys of its role.

    A key whose value is None is left out, but for the content: rows of a table have such keys, and servers refuse them.
    """
    allowed = _OUTGOING.get(message["role"], _PLAIN)
    given = {key for key, value in message.items() if key == "content" or (key in allowed and value is not None)}
    calls = message.get("tool_calls") if "tool_calls" in given else None
    if not calls and given == message.keys() and "tool_calls" not in given:
        return message
    sent = {key: message[key] for key in message if key in given and key != "tool_calls"}
    if calls:
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
