"""The frames of an OpenEnv session, written and read.

One WebSocket is one session, in strict lock-step: each frame that is sent gets one answer, and there are no ids.
Servers of Tiltyard say more than the protocol asks for, under one key that other clients do not read:

- `state` data has `"tiltyard": {...}` with what an environment says about itself: `env` (its name), `dataset_size`,
  `evaluation_size`, `max_turns`, `system_prompt`, `examples`, `tools`; `reset_options`, the names of the reset
  arguments that it takes; and `actions`: "text" (an action is `{"message": text}`) or "tools" (an action is
  `{"type": "list_tools"}` or `{"type": "call_tool", "tool_name", "arguments"}`). Each may be missing.
- The metadata of an answer is the environment's `info`; its key `"tiltyard"` may hold `plain` (True: the observation
  is the value under `message`, and not the object around it) and, after a reset, any of the keys above that changed
  with the episode, and `ignored`, the reset arguments that the environment was not given.
- `done` of an answer is true however the episode ended; for one that was cut, `truncated` under the same key is true,
  and `terminated` says whether the task was over too.
- A mistake of the model is an answer with `tool_error` under the same key, a text for the model, which the observation
  has as well; it earns nothing. An error frame of the code `TOOL_ERROR` means the same.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tiltyard._optional import require
from tiltyard.errors import ActionRefusedError, EnvError, LostSessionError, RolloutError, ServerFullError, ToolError
from tiltyard.tools.text import clean

OWN = "tiltyard"
"""The key of what only servers of Tiltyard say."""

MESSAGE = "message"
"""The field that holds a text environment's observation and, by default, its action."""

TOOL_ERROR = "TOOL_ERROR"
"""The error code of a mistake of the model."""

STATE_FRAME = b'{"type":"state"}'
CLOSE_FRAME = b'{"type":"close"}'
LAST_CODES = frozenset({"CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"})
"""The codes after which the server closes the session."""


@dataclass(frozen=True, slots=True)
class RawResult:
    """What a server answered to a reset or a step, before anything is made of it.

    Attributes:
        observation: As it came, mostly a dict.
        reward: None when it was not scored, or was no finite number.
        done: The episode is over.
        metadata: What the environment says beside the observation.
    """

    observation: Any
    reward: float | None = None
    done: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)


class BadAnswerError(EnvError):
    """The server sent something that the protocol has no place for; the session is given up."""


def encode(kind: str, data: Mapping[str, Any]) -> bytes:
    """One frame. Lone surrogates in texts become U+FFFD.

    Raises:
        EnvError: A value has no form in JSON.
    """
    frame = {"type": kind, "data": data}
    orjson = _orjson()
    try:
        return orjson.dumps(frame, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # a lone surrogate, an int of more than 64 bits, keys that are no strings, or no JSON at all
        pass
    try:
        return json.dumps(_cleaned(frame)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvError(f"the {kind} cannot be sent as JSON: {error}; give plain values") from error


def decode(frame: bytes) -> dict[str, Any]:
    """One frame that came.

    Raises:
        BadAnswerError: It is no JSON object.
    """
    try:
        found = _orjson().loads(frame)
    except ValueError:
        try:
            found = json.loads(frame)  # takes NaN and lone surrogates, which strict JSON has not
        except ValueError as error:
            raise BadAnswerError(f"the server sent what is not JSON ({error}): {_start(frame)}") from error
    if not isinstance(found, dict):
        raise BadAnswerError(f"the server sent a JSON {type(found).__name__}, expected an object: {_start(frame)}")
    return found


@lru_cache(1)
def _orjson() -> Any:
    return require("orjson", "serve")


def answer_data(frame: bytes, kind: str) -> dict[str, Any]:
    """The data of the answer that was asked for.

    Raises:
        ToolError: The server says that the model made a mistake.
        RolloutError: It answered with another error, or with something else.
    """
    answer = decode(frame)
    data = answer.get("data")
    found = answer.get("type")
    if found == "error":
        raise server_error(data if isinstance(data, dict) else {"message": str(data)})
    if found != kind or not isinstance(data, dict):
        raise BadAnswerError(f"the server answered with a frame of type {found!r}, not {kind!r}: {_start(frame)}")
    return data


def server_error(data: Mapping[str, Any]) -> RolloutError | ToolError:
    """The error that an error frame stands for."""
    code, message = str(data.get("code")), str(data.get("message"))
    if code == TOOL_ERROR:
        return ToolError(message)
    if code == "CAPACITY_REACHED":
        return ServerFullError(message, _count(data, "active_sessions"), _count(data, "max_sessions"))
    if code == "VALIDATION_ERROR":
        errors = data.get("errors")
        return ActionRefusedError(refusal_text(message, errors), errors if isinstance(errors, list) else [])
    if code == "FACTORY_ERROR":
        return EnvError(f"the server could not make its environment: {message}")
    if code == "SESSION_ERROR":
        return LostSessionError(f"the server ended the session: {message}")
    return EnvError(f"the environment behind the server failed: {message} ({code})")


def result_of(data: Mapping[str, Any]) -> RawResult:
    """The result that an answer's data holds.

    Raises:
        ToolError: The answer is a mistake of the model.
    """
    observation = data.get("observation")
    metadata = data.get("metadata")
    if metadata is None and isinstance(observation, dict):
        metadata = observation.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    done = data.get("done", False)
    own = known.get(OWN)
    if isinstance(own, dict):
        if "tool_error" in own:
            raise ToolError(str(own["tool_error"]))
        done = own.get("terminated", done)
    return RawResult(observation, data.get("reward"), done, known)


def truncated(metadata: Mapping[str, Any]) -> bool:
    """Whether the episode was cut for a reason outside the task."""
    own = metadata.get(OWN)
    return metadata.get("truncated") is True or (isinstance(own, Mapping) and own.get("truncated") is True)


def _start(frame: bytes) -> str:
    return repr(bytes(frame[:200]))


def _count(data: Mapping[str, Any], name: str) -> int | None:
    value = data.get(name)
    return value if isinstance(value, int) else None


def refusal_text(message: str, errors: Any) -> str:
    """What pydantic found wrong, one field after the other."""
    if not isinstance(errors, list) or not errors:
        return message
    told = []
    for error in errors:
        where = ".".join(map(str, error.get("loc", ()))) if isinstance(error, Mapping) else ""
        what = error.get("msg", error) if isinstance(error, Mapping) else error
        told.append(f"{where}: {what}" if where else str(what))
    return "; ".join(told)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(str(key)): _cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value
