"""A tokenizer's chat template as text: what it can say, and how the rest is said within it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiltyard._optional import require
from tiltyard.errors import TemplateError
from tiltyard.tokens.encoding import Encoder
from tiltyard.tokens.probes import PROBE_TOOL
from tiltyard.tools.messages import parse_call
from tiltyard.types import Message, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOOLS_SECTION = (
    "# Tools\n\n"
    "You may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n"
    "<tools>\n{schemas}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> "
    "XML tags:\n<tool_call>\n"
    '{{"name": <function-name>, "arguments": <args-json-object>}}\n'
    "</tool_call>"
)
"""What the system message says about tools where the template has no branch for them (the Hermes form)."""

ANSWER = "qzanswerqz"
"""Stands for the model's answer in a rendered context; what follows it is the bridge."""

_USER, _SECOND, _SYSTEM, _RESULT = "qzuserqz", "qzsecondqz", "qzsystemqz", "qzresultqz"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the template can say, found by rendering probes. What it cannot say is folded by `ChatTemplate`.

    Attributes:
        system: A leading system message. Else: its text opens the first user message.
        late_system: A system message later on. Else: it becomes a user message.
        neighbours: Two user messages in a row. Else: they are joined, with an empty line between.
        tool_calls: An assistant's `tool_calls`. Else: written into its content in the Hermes form.
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


class ChatTemplate:
    """Renders conversations to text; every call folds alike, so that opening and bridge agree.

    Raises:
        TemplateError: The tokenizer has no chat template, or it refuses a plain conversation.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", encoder: Encoder, template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        if not tokenizer.chat_template:
            raise TemplateError(
                f"the tokenizer {tokenizer.name_or_path!r} has no chat template, so messages cannot be put into "
                "tokens; set tokenizer.chat_template to the template that the model was trained with, or take the "
                "instruct variant of the model"
            )
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._kwargs = dict(template_kwargs or {})
        self._refusals = (require("jinja2", "train").TemplateError, TypeError, ValueError, KeyError)
        self.rules = self._probe()
        self._close_of_call = self._find_close_of_call()

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, generation_prompt: bool = True
    ) -> str:
        """Render a whole conversation; text from the messages and schemas is hidden as `Encoder.hide` does.

        Raises:
            TemplateError: The template refuses the conversation even so; the message says why.
        """
        plain = [plain_message(message, self._encoder) for message in messages]
        schemas = [self._encoder.hide_in(schema) for schema in tools]
        folded, schemas = self._fold(plain, schemas)
        return self._apply(folded, schemas, generation_prompt=generation_prompt)

    def after_answer(
        self, new: Sequence[Message], tools: Sequence[ToolSchema] = (), *, generation_prompt: bool = True
    ) -> str:
        """What the template writes after an assistant's answer, end of turn included, when `new` follows it.

        Before tool results stands a turn that made the calls, where the template can say so: some refuse
        results that nothing asked for.
        """
        turn: Message = {"role": "assistant", "content": ANSWER}
        calling = self.rules.tool_calls and self.rules.tool_role and bool(new) and new[0]["role"] == "tool"
        if calling:
            turn = _calling(new)
        messages = [{"role": "user", "content": _USER}, turn, *new]
        _, found, after = self.render(messages, tools, generation_prompt=generation_prompt).rpartition(ANSWER)
        if not found:
            raise TemplateError("the chat template drops the assistant's answer, so nothing can be put after it")
        return after.removeprefix(self._close_of_call) if calling else after

    def _find_close_of_call(self) -> str:
        """What the template writes between the last argument of a call and the end of the turn."""
        if not self.rules.tool_calls:
            return ""
        user: Message = {"role": "user", "content": _USER}
        turns = ({"role": "assistant", "content": ANSWER}, _calling([{"role": "tool", "content": ""}]))
        answer, call = (self.render([user, turn], generation_prompt=False).rpartition(ANSWER)[2] for turn in turns)
        if answer and call.endswith(answer):
            return call.removesuffix(answer)
        end = self._encoder.first_special(call)  # a turn of calls has an end of its own
        return call[: end.start()] if end else call

    def _apply(self, messages: list[Message], tools: list[ToolSchema], *, generation_prompt: bool) -> str:
        schemas: list[Any] | None = list(tools) or None
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tools=schemas, add_generation_prompt=generation_prompt, tokenize=False, **self._kwargs
            )
        except self._refusals as error:
            roles = ", ".join(str(message["role"]) for message in messages) or "no message"
            raise TemplateError(
                f"the chat template of {self._tokenizer.name_or_path!r} refused a conversation ({roles}): {error}; "
                "change the conversation, or set tokenizer.chat_template to a template that takes it"
            ) from error
        return str(text)

    def _fold(self, messages: list[Message], tools: list[ToolSchema]) -> tuple[list[Message], list[ToolSchema]]:
        rules = self.rules
        if not rules.any_call_id:
            messages = [_with_short_ids(message) for message in messages]
        if tools and not rules.tools:
            messages, tools = _with_tools_section(messages, tools, rules.default_system), []
        if not rules.tool_calls:
            messages = [_calls_as_text(message) for message in messages]
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

    def _probe(self) -> Rules:
        user, second = {"role": "user", "content": _USER}, {"role": "user", "content": _SECOND}
        answer, system = {"role": "assistant", "content": ANSWER}, {"role": "system", "content": _SYSTEM}
        results: list[Message] = [
            {"role": "tool", "content": _RESULT, "tool_call_id": "call_0"},
            {"role": "tool", "content": _SECOND, "tool_call_id": "call_1"},
        ]
        self._apply([user, answer, second], [], generation_prompt=True)
        calling = _calling(results)
        any_call_id = self._says([user, calling], "tool", ANSWER)
        if not any_call_id:
            calling, *results = (_with_short_ids(message) for message in (calling, *results))
        tool_calls = any_call_id or self._says([user, calling], "tool", ANSWER)
        turn = calling if tool_calls else answer
        with_system = self._says([system, user], _SYSTEM, _USER)
        return Rules(
            system=with_system,
            late_system=self._says([user, answer, system, second], _SYSTEM, _SECOND),
            neighbours=self._says([user, second], _USER, _SECOND),
            tool_calls=tool_calls,
            tool_role=self._says([user, turn, results[0]], _RESULT)
            and self._says([user, turn, *results], _RESULT, _SECOND),
            user_after_tool=self._says([user, turn, results[0], second], _RESULT, _SECOND),
            tools=self._says([system, user] if with_system else [user], "qztoolqz", "qzargqz", tools=[PROBE_TOOL]),
            any_call_id=any_call_id or not tool_calls,
            default_system=self._default_system([system, user]) if with_system else "",
        )

    def _says(self, messages: list[Message], *words: str, tools: Sequence[ToolSchema] = ()) -> bool:
        try:
            text = self._apply(messages, list(tools), generation_prompt=True)
        except TemplateError:
            return False
        return all(word in text for word in words)

    def _default_system(self, messages: list[Message]) -> str:
        before, _, after = self._apply(messages, [], generation_prompt=True).partition(_SYSTEM)
        bare = self._apply(messages[1:], [], generation_prompt=True)
        fits = len(bare) > len(before) + len(after) and bare.startswith(before) and bare.endswith(after)
        return bare[len(before) : len(bare) - len(after)] if fits else ""


def plain_message(message: Message, encoder: Encoder) -> Message:
    """The message with its content as text, its calls' arguments as mappings, and all of it hidden."""
    plain: Message = {"role": message["role"], "content": encoder.hide(text_of(message.get("content")))}
    for key in ("name", "tool_call_id", "reasoning_content"):
        if message.get(key):
            plain[key] = encoder.hide_in(message[key])
    if message.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call, encoder) for call in message["tool_calls"]]
    return plain


def _plain_call(given: Mapping[str, Any], encoder: Encoder) -> dict[str, Any]:
    call = parse_call(given)
    # Templates want a mapping; what the model wrote instead of one stays as it is.
    arguments = call.arguments if call.arguments is not None else call.raw or {}
    function = {"name": encoder.hide(call.name), "arguments": encoder.hide_in(arguments)}
    return {"type": "function", "id": encoder.hide(call.id), "function": function}


def text_of(content: object) -> str:
    """A message's content as text: None is empty, text parts are joined.

    Raises:
        TemplateError: A part that is not text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, Mapping) and "text" in part for part in content):
        return "".join(part["text"] for part in content)
    raise TemplateError(f"a message's content must be text or a list of text parts, got {content!r:.200}")


def _calling(results: Sequence[Message]) -> Message:
    """An assistant turn that made the calls which these leading tool messages answer."""
    calls = []
    for message in results:
        if message["role"] != "tool":
            break
        function = {"name": message.get("name") or "tool", "arguments": {"x": ANSWER}}
        calls.append({"type": "function", "id": message.get("tool_call_id") or "call_0", "function": function})
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _with_short_ids(message: Message) -> Message:
    made = dict(message)
    if "tool_call_id" in made:
        made["tool_call_id"] = _short_id(made["tool_call_id"])
    if "tool_calls" in made:
        made["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in made["tool_calls"]]
    return made


def _short_id(call_id: str) -> str:
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _with_tools_section(messages: list[Message], tools: list[ToolSchema], default_system: str) -> list[Message]:
    section = TOOLS_SECTION.format(schemas="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    given = messages and messages[0]["role"] == "system"
    system = str(messages[0]["content"]) if given else default_system
    content = f"{system}\n\n{section}" if system else section
    return [{"role": "system", "content": content}, *(messages[1:] if given else messages)]


def _calls_as_text(message: Message) -> Message:
    if not message.get("tool_calls"):
        return message
    functions = (call["function"] for call in message["tool_calls"])
    calls = [f"<tool_call>\n{json.dumps(function, ensure_ascii=False)}\n</tool_call>" for function in functions]
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join([*filter(None, [message["content"]]), *calls])}


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
