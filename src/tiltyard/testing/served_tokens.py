"""The tokens of the scripted server: one id a byte, so that a test can read them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tiltyard.tools.messages import assistant_message
from tiltyard.types import Reply

END = "\x03"
"""Ends the model's turn."""


def to_ids(text: str) -> list[int]:
    """A text as ids."""
    return list(text.encode())


def prompt_text(body: Mapping[str, Any]) -> str:
    """The chat template: what the model sees of a request. Like most it shows no reasoning of earlier turns."""
    tools = json.dumps(body["tools"]) + "\n" if body.get("tools") else ""
    return tools + "".join(map(_message_text, body["messages"])) + "<assistant>"


def sampled_text(reply: Reply) -> str:
    """What the model samples to say this, its end included where it was not cut."""
    thought = f"<think>{reply.reasoning}</think>" if reply.reasoning else ""
    return thought + _said(assistant_message(reply)) + (END if reply.finish_reason == "stop" else "")


def logprobs_of(ids: Sequence[int], *, with_ids: bool) -> list[dict[str, Any]]:
    """Log-probabilities in OpenAI's form; a token that was not sampled is always likelier than the one that was."""
    entries = []
    for number, one in enumerate(ids):
        sampled = {"token": chr(one), "logprob": -1.0 - number / 1024, "bytes": [one]}
        likelier = {"token": "?", "logprob": -0.25, "bytes": [63]}
        if with_ids:
            sampled["id"], likelier["id"] = one, 63
        entries.append({**sampled, "top_logprobs": [likelier, sampled]})
    return entries


def _message_text(message: Mapping[str, Any]) -> str:
    if message["role"] == "assistant":
        return f"<assistant>{_said(message)}{END}\n"
    return f"<{message['role']}>{message['content']}\n"


def _said(message: Mapping[str, Any]) -> str:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return f"{message['content'] or ''}{json.dumps(calls) if calls else ''}"
