"""What a chat template cannot say, said in what it can."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiltyard.tools.parsing import Family
from tiltyard.types import Message, ToolSchema

TOOLS_SECTION = (
    "# Tools\n\n"
    "You may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n"
    "<tools>\n{schemas}\n</tools>\n\n"
    "{how_to_call}"
)
"""What the system message says about tools where the template has no branch for them."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the template can say, found by rendering probes. What it cannot say, `fold` says otherwise.

    Attributes:
        system: A leading system message. Else: its text opens the first user message.
        late_system: A system message later on. Else: it becomes a user message.
        neighbours: Two user messages in a row. Else: they are joined, with an empty line between.
        tool_calls: An assistant's `tool_calls`. Else: written into its content as the family writes them.
        tool_role: One and two tool messages. Else: a user message of `<tool_response>` blocks.
        user_after_tool: A user message right after a tool message. Else: joined to the tool's result.
        tools: Tool schemas. Else: `TOOLS_SECTION` ends the system message.
        any_call_id: Call ids of any form. Else: nine letters and digits made from them, as Mistral wants.
        default_system: The system text that the template writes when none is given; "" for none.
    """

    system: bool
    late_system: bool
    neighbours: bool
    tool_calls: bool
    tool_role: bool
    user_after_tool: bool
    tools: bool
    any_call_id: bool
    default_system: str


def fold(
    messages: list[Message], tools: list[ToolSchema], rules: Rules, family: Family
) -> tuple[list[Message], list[ToolSchema]]:
    """Say a conversation within the rules: the messages and tool schemas that the template is given."""
    if not rules.any_call_id:
        messages = [with_short_ids(message) for message in messages]
    if tools and not rules.tools:
        messages, tools = _with_tools_section(messages, tools, rules.default_system, family.how_to_call()), []
    if not rules.tool_calls:
        messages = [_calls_as_text(message, family) for message in messages]
    if not rules.tool_role:
        messages = _results_as_user(messages)
    if not rules.system and messages and messages[0]["role"] == "system":
        messages = _system_into_user(messages)
    if not rules.late_system:
        messages = [
            {**message, "role": "user"} if index and message["role"] == "system" else message
            for index, message in enumerate(messages)
        ]
    joined: list[Message] = []
    for message in messages:
        after = joined[-1]["role"] if joined else None
        if message["role"] == "user" and (
            (after == "user" and not rules.neighbours) or (after == "tool" and not rules.user_after_tool)
        ):
            joined[-1] = {**joined[-1], "content": f"{joined[-1]['content']}\n\n{message['content']}"}
        else:
            joined.append(message)
    return joined, tools


def with_short_ids(message: Message) -> Message:
    """The message with its call ids in nine letters and digits, the same for the same id."""
    made = dict(message)
    if "tool_call_id" in made:
        made["tool_call_id"] = _short_id(made["tool_call_id"])
    if "tool_calls" in made:
        made["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in made["tool_calls"]]
    return made


def _short_id(call_id: str) -> str:
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _with_tools_section(
    messages: list[Message], tools: list[ToolSchema], default_system: str, how_to_call: str
) -> list[Message]:
    schemas = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    section = TOOLS_SECTION.format(schemas=schemas, how_to_call=how_to_call)
    given = messages and messages[0]["role"] == "system"
    system = str(messages[0]["content"]) if given else default_system
    content = f"{system}\n\n{section}" if system else section
    return [{"role": "system", "content": content}, *(messages[1:] if given else messages)]


def _calls_as_text(message: Message, family: Family) -> Message:
    if not message.get("tool_calls"):
        return message
    calls = [_call_as_text(call["function"], family) for call in message["tool_calls"]]
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join([*filter(None, [message["content"]]), *calls])}


def _call_as_text(function: Mapping[str, Any], family: Family) -> str:
    """A call as the family writes it; one whose arguments could not be read is written as it was."""
    arguments = function["arguments"]
    return family.write(function["name"], arguments) if isinstance(arguments, Mapping) else str(arguments)


def _results_as_user(messages: list[Message]) -> list[Message]:
    folded: list[Message] = []
    open_results = False
    for message in messages:
        if message["role"] != "tool":
            folded.append(message)
        else:
            block = f"<tool_response>\n{message['content']}\n</tool_response>"
            if open_results:
                folded[-1] = {"role": "user", "content": f"{folded[-1]['content']}\n{block}"}
            else:
                folded.append({"role": "user", "content": block})
        open_results = message["role"] == "tool"
    return folded


def _system_into_user(messages: list[Message]) -> list[Message]:
    system, *rest = messages
    if rest and rest[0]["role"] == "user":
        return [{"role": "user", "content": f"{system['content']}\n\n{rest[0]['content']}"}, *rest[1:]]
    return [{"role": "user", "content": system["content"]}, *rest]
