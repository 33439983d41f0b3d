"""What a server's refusal means for an episode."""

import json
import re
from collections.abc import Mapping
from typing import Any

from tiltyard.errors import PolicyError, PromptTooLongError

RETRIED = frozenset({408, 409, 429})
"""The statuses under 500 that another attempt may change."""

MAX_MESSAGE_CHARS = 600

_TOO_LONG = re.compile(
    r"context[_ -]?(length|size|window)|maximum context|max_model_len|prompt is too long|too many (input )?tokens"
    r"|input( length| is)? (too long|exceeds)|exceeds? the (model'?s )?(maximum|available) (context|length|number of)",
    re.IGNORECASE,
)
_TOO_LONG_STATUSES = frozenset({400, 413, 422, 500})  # llama.cpp's server has answered 500 to it

_CURES = {
    401: "give OpenAI(api_key=...) or set OPENAI_API_KEY",
    403: "give OpenAI(api_key=...) or set OPENAI_API_KEY",
    404: "check OpenAI(model=...), and that base_url ends where /chat/completions begins (mostly in /v1)",
}


def is_retried(status: int) -> bool:
    """True when the same request may be answered the next time."""
    return status in RETRIED or status >= 500


def server_error(status: int, payload: str, url: str) -> PolicyError:
    """The error of a response whose status is not 200."""
    return named_error(status, _message(payload), url)


def named_error(status: int, message: str, url: str) -> PolicyError:
    """The error of a status and what the server said with it."""
    text = message if len(message) <= MAX_MESSAGE_CHARS else message[:MAX_MESSAGE_CHARS] + "…"
    if status in _TOO_LONG_STATUSES and _TOO_LONG.search(message):
        return PromptTooLongError(f"the server answered {status}: {text}")
    cure = f"; {_CURES[status]}" if status in _CURES else ""
    if 300 <= status < 400:
        cure = "; a redirect is not followed: give OpenAI(base_url=...) the address that it leads to"
    return PolicyError(f"{url} answered {status}: {text or 'no message'}{cure}")


def error_inside(data: Any) -> tuple[int, str] | None:
    """Status and message of an error that came with status 200, as gateways send it; None for an answer."""
    if not isinstance(data, Mapping) or data.get("choices") or not data.get("error"):
        return None
    error = data["error"]
    code = error.get("code") if isinstance(error, Mapping) else None
    return (code if isinstance(code, int) and code >= 400 else 502), _said(data)


def _message(payload: str) -> str:
    try:
        return _said(json.loads(payload))
    except ValueError:
        return payload.strip()


def _said(data: Any) -> str:
    """What the server said: OpenAI's, vLLM's, FastAPI's and llama.cpp's ways of wording an error."""
    if isinstance(data, Mapping):
        error = data.get("error", data)
        if isinstance(error, Mapping):
            kind = error.get("code") if isinstance(error.get("code"), str) else error.get("type")
            text = error.get("message") or error.get("detail") or error
            return f"{text} ({kind})" if kind else str(text)
        return str(error)
    return str(data)
