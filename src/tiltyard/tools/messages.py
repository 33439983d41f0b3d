"""Tool calls and their results as OpenAI messages."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tiltyard.tools.text import clean, fields
from tiltyard.types import Message, Reply, ToolCall, ToolSchema


def assistant_message(reply: Reply) -> Message:
    """The reply as it stands in the conversation; `reasoning_content` only where there was reasoning."""
    message: Message = {"role": "assistant", "content": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [call_as_json(call) for call in reply.tool_calls]
    return message


def begun_answer(messages: Sequence[Message]) -> str:
    """What a conversation that ends with the assistant has begun of the answer to come; "" for any other one."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or last.get("tool_calls"):
        return ""
    content = last.get("content")
    return content if isinstance(content, str) else ""


def tool_message(call: ToolCall, text: str) -> Message:
    """The one result of a call."""
    return {"role": "tool", "content": text, "tool_call_id": call.id, "name": call.name}


def call_as_json(call: ToolCall) -> dict[str, Any]:
    """A call in OpenAI form: the arguments are a JSON string, exactly as the model wrote it where that is known."""
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments_text(call)},
    }


def arguments_text(call: ToolCall) -> str:
    """The arguments as the model wrote them, else as JSON with key order and non-ASCII text kept."""
    if call.raw is not None:
        return call.raw
    return json.dumps(call.arguments if call.arguments is not None else {}, ensure_ascii=False)


def text_with_calls(reply: Reply) -> str:
    """The reply's text with its calls written out, each as `<tool_call>{json}</tool_call>`."""
    if not reply.tool_calls:
        return reply.text
    calls = "\n".join(f"<tool_call>\n{_call_text(call)}\n</tool_call>" for call in reply.tool_calls)
    return f"{reply.text}\n{calls}" if reply.text else calls


def _call_text(call: ToolCall) -> str:
    if call.arguments is None and call.raw is not None:
        return call.raw
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {arguments_text(call)}}}'


def parse_call(call: Any) -> ToolCall:
    """A call from its OpenAI form, or from a bare `{"name", "arguments"}`; a broken one carries its `error`.

    The OpenAI SDK's own object for a call is taken as well. `arguments` may be a mapping or a JSON string. Absent, null
    and "" mean no arguments; anything else that is not one JSON object is an error, a string encoded twice included:
    nothing is guessed.
    """
    known = fields(call)
    if known is None:
        return ToolCall("", None, error=f"a tool call must be a JSON object, got {_clip(call)}")
    function = known.get("function", known)
    call_id = known.get("id") or ""
    if not isinstance(function, Mapping):
        return ToolCall("", None, str(call_id), error=f"a tool call must be a JSON object, got {_clip(function)}")
    name, arguments = function.get("name"), function.get("arguments")
    raw = clean(arguments) if isinstance(arguments, str) else None
    if not isinstance(name, str) or not name:
        error = f"a tool call needs its tool's name as text in 'name', got {_clip(name)}"
        return ToolCall("", None, str(call_id), error, raw)
    parsed, error = parse_arguments(name, arguments)
    return ToolCall(name, parsed, str(call_id), error, raw)


def parse_arguments(name: str, arguments: Any) -> tuple[dict[str, Any] | None, str | None]:
    """The arguments of the tool `name` as a dict, or None and what is wrong with them.

    Half a surrogate pair, which JSON can spell and no file or request can hold, becomes U+FFFD.
    """
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = json.loads(arguments, parse_constant=refuse_constant)
        except (ValueError, RecursionError) as error:
            return None, f"the arguments of {name!r} are not valid JSON ({error}); write one JSON object"
    if arguments is None or arguments == "" or (isinstance(arguments, str) and not arguments.strip()):
        return {}, None
    if not isinstance(arguments, Mapping):
        return None, f"the arguments of {name!r} must be one JSON object, got {_clip(arguments)}"
    try:
        return _encodable(dict(arguments)), None
    except (ValueError, RecursionError) as error:  # a number such as 1e999, which Python reads as infinity
        return None, f"the arguments of {name!r} are not valid JSON ({error}); write one JSON object"


def _encodable(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with no text in them that cannot be encoded.

    Raises:
        ValueError: A number is not finite.
    """
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except TypeError:  # values of Python that were not read from JSON
        return arguments
    cleaned = clean(text)
    return arguments if cleaned == text else json.loads(cleaned)


def tool_names(tools: Sequence[ToolSchema]) -> frozenset[str]:
    """The names of the tools that a model is shown."""
    return frozenset(str(tool.get("function", tool).get("name")) for tool in tools)


def refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python reads and JSON does not have; for `parse_constant`."""
    raise ValueError(f"{name} is not JSON")


def _clip(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"
