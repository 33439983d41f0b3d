"""A tokenizer's chat template as text: what it can say, and how the rest is said within it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiltyard._optional import require
from tiltyard.errors import TemplateError
from tiltyard.tokens.encoding import Encoder
from tiltyard.tokens.folding import Rules, fold, with_short_ids
from tiltyard.tokens.probes import PROBE_TOOL
from tiltyard.tools.messages import parse_call
from tiltyard.tools.parsing import HERMES, CallTurn, Family, recognise
from tiltyard.types import Message, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANSWER = "qzanswerqz"
"""Stands for the model's answer in a rendered context; what follows it is the bridge."""

OWN_KWARGS = frozenset(
    {"conversation", "messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize", "return_dict"}
)
"""The arguments of a render that are not the caller's."""

_USER, _SECOND, _SYSTEM, _RESULT = "qzuserqz", "qzsecondqz", "qzsystemqz", "qzresultqz"


class ChatTemplate:
    """Renders conversations to text; every call folds alike, so that opening and bridge agree.

    Raises:
        TemplateError: The tokenizer has no chat template, or it refuses a plain conversation.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        encoder: Encoder,
        template_kwargs: Mapping[str, Any] | None = None,
        *,
        family: Family | None = None,
    ) -> None:
        if not tokenizer.chat_template:
            raise TemplateError(
                f"the tokenizer {tokenizer.name_or_path!r} has no chat template, so messages cannot be put into "
                "tokens; set tokenizer.chat_template to the template that the model was trained with, or take the "
                "instruct variant of the model"
            )
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._kwargs = _checked_kwargs(template_kwargs)
        # What a template's own arithmetic, lookups and methods raise over a text that it was not written for.
        faults = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
        self._refusals = (require("jinja2", "train").TemplateError, *faults)
        self.family = family or HERMES
        self.rules = self._probe()
        self.family = family or self._recognised()
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
        folded, schemas = fold(plain, schemas, self.rules, self.family or HERMES)
        return self._apply(folded, schemas, generation_prompt=generation_prompt)

    def after_answer(
        self, new: Sequence[Message], tools: Sequence[ToolSchema] = (), *, generation_prompt: bool = True
    ) -> str:
        """What the template writes after an assistant's answer, end of turn included, when `new` follows it.

        Before tool results stands a turn that made the calls, where the template can say so: some refuse
        results that nothing asked for.
        """
        answer = _unheard(new, tools)
        turn: Message = {"role": "assistant", "content": answer}
        calling = self.rules.tool_calls and self.rules.tool_role and bool(new) and new[0]["role"] == "tool"
        if calling:
            turn = _calling(new, answer)
        messages = [{"role": "user", "content": _USER}, turn, *new]
        _, found, after = self.render(messages, tools, generation_prompt=generation_prompt).rpartition(answer)
        if not found:
            raise TemplateError("the chat template drops the assistant's answer, so nothing can be put after it")
        return after.removeprefix(self._close_of_call) if calling else after

    def _recognised(self) -> Family | None:
        """The family of the template; None where it speaks of tools in a way that is not known."""
        call_turn = self._call_turn()
        known = recognise(self._text(), call_turn) if self.rules.tools or call_turn else None
        return known or (None if self.rules.tools else HERMES)

    def _call_turn(self) -> CallTurn | None:
        """What the template writes for a turn with one call; None where it cannot."""
        if not self.rules.tool_calls:
            return None
        user: Message = {"role": "user", "content": _USER}
        call = _calling([{"role": "tool", "content": ""}])
        prompt, turn = self.render([user]), self.render([user, call], generation_prompt=False)
        same = next((at for at, pair in enumerate(zip(prompt, turn, strict=False)) if pair[0] != pair[1]), len(prompt))
        if same < len(prompt):  # the prompt opens what history does not have: begin where they last agreed on a line
            ends = [match.end() for match in self._encoder.specials_in(turn) if match.end() <= same]
            same = max([turn.rfind("\n", 0, same) + 1, *ends])
        function = call["tool_calls"][0]["function"]
        return CallTurn(turn[same:], self._encoder.special_ids.keys(), function["name"], function["arguments"])

    def _text(self) -> str:
        template = self._tokenizer.chat_template
        return "\n".join(map(str, template.values())) if isinstance(template, Mapping) else str(template)

    def _find_close_of_call(self) -> str:
        """What the template writes between the last argument of a call and the end of the turn."""
        if not self.rules.tool_calls:
            return ""
        user: Message = {"role": "user", "content": _USER}
        turns = ({"role": "assistant", "content": ANSWER}, _calling([{"role": "tool", "content": ""}]))
        answer, call = (self.render([user, turn], generation_prompt=False).rpartition(ANSWER)[2] for turn in turns)
        if answer and call.endswith(answer):
            return call.removesuffix(answer)
        # A turn of calls has an end of its own, behind the tokens that belong to the call.
        family = self.family or HERMES
        for end in self._encoder.specials_in(call):
            if end[0] in family.stops or not family.reads(end[0]):
                return call[: end.start()]
        return call

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
            calling, *results = (with_short_ids(message) for message in (calling, *results))
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


def _checked_kwargs(given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise TemplateError(f"chat_template_kwargs must be a dict of what the template takes, got {given!r}")
    if taken := sorted(OWN_KWARGS & (given or {}).keys()):
        raise TemplateError(f"{taken[0]!r} is set for each render as it needs it; leave it out of chat_template_kwargs")
    return dict(given or {})


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
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        texts = [part.get("text") for part in content]
        if all(isinstance(text, str) for text in texts):
            return "".join(texts)
    raise TemplateError(f"a message's content must be text or a list of text parts, got {content!r:.200}")


def _unheard(new: Sequence[Message], tools: Sequence[ToolSchema]) -> str:
    """`ANSWER`, or a text like it where what is rendered beside it holds that already."""
    beside, answer, number = repr((new, tools)), ANSWER, 0
    while answer in beside:
        number += 1
        answer = f"qzanswer{number}qz"
    return answer


def _calling(results: Sequence[Message], answer: str = ANSWER) -> Message:
    """An assistant turn that made the calls which these leading tool messages answer."""
    calls = []
    for message in results:
        if message["role"] != "tool":
            break
        function = {"name": message.get("name") or "tool", "arguments": {"x": answer}}
        calls.append({"type": "function", "id": message.get("tool_call_id") or "call_0", "function": function})
    return {"role": "assistant", "content": "", "tool_calls": calls}
