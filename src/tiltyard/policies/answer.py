"""What a server answered as a `Reply`: everything that a real server is known to send, or an error that says what."""

import json
from collections.abc import Mapping
from typing import Any

from tiltyard._optional import require
from tiltyard.errors import PolicyError
from tiltyard.policies.sampled_tokens import read_tokens
from tiltyard.tools.messages import parse_call
from tiltyard.tools.text import clean
from tiltyard.types import FinishReason, Reply, ToolCall

orjson = require("orjson", "api")

WHOLE = frozenset({None, "", "stop", "tool_calls", "function_call", "eos", "eos_token", "stop_sequence", "end_turn"})
"""The finish reasons of an answer that the model ended itself; servers that give none send whole answers."""

CUT = frozenset({"length", "max_tokens", "model_length"})


def decode(payload: bytes) -> Any:
    """The JSON of a response.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        return orjson.loads(payload)
    except ValueError:
        # Half a surrogate pair, which a model can sample, is refused by the one and read by the other.
        return json.loads(payload)


def read_reply(data: Any, *, max_tokens: int | None = None) -> Reply:
    """The one answer in a chat completion.

    Args:
        data: The response's JSON.
        max_tokens: What was asked for: an answer that was cut before it had as many filled the context.

    Raises:
        PolicyError: There is no answer in it, or one that the server says is not the model's own.
    """
    choice = _choice(data)
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise PolicyError(f"the server's answer has no message: {_clip(choice)}")
    usage = data.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    finish_reason = _finish_reason(choice.get("finish_reason"), usage, max_tokens)
    tokens = read_tokens(data, choice)
    return Reply(
        text=_text(message),
        tool_calls=_calls(message),
        reasoning=_reasoning(message),
        finish_reason=finish_reason,
        token_ids=tokens.ids,
        logprobs=tokens.logprobs,
        prompt_ids=tokens.prompt_ids,
        context_tokens=_total(usage),
        sampled_tokens=_count(usage.get("completion_tokens")),
    )


def _choice(data: Any) -> Mapping[str, Any]:
    choices = data.get("choices") if isinstance(data, Mapping) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise PolicyError(f"the server's answer has no choices: {_clip(data)}")
    return choices[0]


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if content is None:
        content = message.get("refusal") or ""
    if isinstance(content, list):
        content = "".join(map(_part_text, content))
    return clean(content) if isinstance(content, str) else str(content)


def _part_text(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else None
    return text if isinstance(text, str) else ""


def _reasoning(message: Mapping[str, Any]) -> str:
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return clean(reasoning) if isinstance(reasoning, str) else ""


def _calls(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    calls = message.get("tool_calls")
    if not calls and isinstance(older := message.get("function_call"), Mapping):
        calls = [{"function": older}]
    if not calls:
        return ()
    if not isinstance(calls, list):
        calls = [calls]
    return tuple(parse_call(call) if isinstance(call, Mapping) else parse_call({"function": call}) for call in calls)


def _finish_reason(given: Any, usage: Mapping[str, Any], max_tokens: int | None) -> FinishReason:
    if given in CUT:
        sampled = usage.get("completion_tokens")
        full = isinstance(sampled, int) and max_tokens is not None and 0 < sampled < max_tokens
        return "context" if full else "length"
    if given in WHOLE:
        return "stop"
    raise PolicyError(f"the server ended the answer with finish_reason {given!r}: it is not the model's whole answer")


def _total(usage: Mapping[str, Any]) -> int | None:
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return prompt + completion if isinstance(prompt, int) and isinstance(completion, int) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _clip(value: Any, limit: int = 300) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"
