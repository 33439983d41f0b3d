"""Renderers of the families that the `renderers` package knows, behind the same checks as ours."""

import importlib
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tiltyard.errors import TemplateError
from tiltyard.tokens.encoding import Encoder
from tiltyard.tokens.probes import TEXT_SHAPES, TOOL_SHAPES, check_bridges
from tiltyard.tokens.template import plain_message
from tiltyard.tools.messages import begun_answer
from tiltyard.tools.parsing import CUT_OFF, Family
from tiltyard.types import FinishReason, Message, Reply, ToolCall, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)


class Derived(Protocol):
    """The renderer derived from the template, which a family's renderer is checked against."""

    encoder: Encoder
    family: Family | None
    stop_ids: frozenset[int]
    rewrites_history: str
    bridge_starts: frozenset[int]

    def full(self, messages: Sequence[Message], tools: Sequence[ToolSchema], generation_prompt: bool) -> list[int]:
        """See `TemplateRenderer`."""
        ...

    def bridge(
        self,
        sampled_tail: Sequence[int],
        new: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        generation_prompt: bool = True,
    ) -> list[int]:
        """See `Renderer`."""
        ...

    def parse(self, ids: Sequence[int], finish_reason: FinishReason, *, tools: Sequence[ToolSchema] = ()) -> Reply:
        """See `Renderer`."""
        ...


class LiteralTokenizer:
    """The part of a tokenizer that `renderers` uses, over an `Encoder`: what was hidden becomes ordinary text."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", encoder: Encoder) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self.name_or_path = tokenizer.name_or_path
        self.chat_template = tokenizer.chat_template
        self.unk_token_id = tokenizer.unk_token_id
        self.eos_token_id = tokenizer.eos_token_id

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Encode a piece of a conversation; nothing is ever added to it."""
        del add_special_tokens
        return self._encoder.encode(text)

    def decode(self, token_ids: Any, **_: Any) -> str:
        """Decode ids as they are, whatever clean-up is asked for."""
        return self._encoder.decode(token_ids)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """See transformers."""
        return self._tokenizer.convert_tokens_to_ids(tokens)


class FamilyRenderer:
    """A renderer of the `renderers` package, with earlier thinking kept as it was sampled.

    It was tried with tokenizers built to a family's tokens and template. A bridge that it declines is taken
    from the derived renderer, which passed the same checks.
    """

    def __init__(self, renderer: Any, derived: Derived) -> None:
        self._renderer = renderer
        self._derived = derived
        self._prompt: list[int] = renderer.render_ids([{"role": "user", "content": "x"}], add_generation_prompt=True)
        self.stop_ids = frozenset(renderer.get_stop_token_ids()) | derived.stop_ids
        self.rewrites_history = derived.rewrites_history
        self.family: str = renderer.config.name

    def opening(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> list[int]:
        """See `Renderer`."""
        begun = begun_answer(messages)
        plain, schemas = self._hidden(messages[:-1] if begun else messages, tools)
        ids = list(self._renderer.render_ids(plain, tools=schemas, add_generation_prompt=True))
        encoder = self._derived.encoder
        return ids + encoder.encode(encoder.hide(begun)) if begun else ids

    def bridge(
        self,
        sampled_tail: Sequence[int],
        new: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        generation_prompt: bool = True,
    ) -> list[int]:
        """See `Renderer`; give the whole turn as `sampled_tail`, so that a block left open in it is closed."""
        if generation_prompt and new:
            plain, schemas = self._hidden(new, tools)
            bridged = self._renderer.bridge_to_next_turn(self._prompt, list(sampled_tail), plain, tools=schemas)
            if bridged is not None:
                return list(bridged.token_ids[len(self._prompt) + len(sampled_tail) :])
        return self._derived.bridge(sampled_tail, new, tools, generation_prompt=generation_prompt)

    def parse(self, ids: Sequence[int], finish_reason: FinishReason, *, tools: Sequence[ToolSchema] = ()) -> Reply:
        """See `Renderer`; our parser reads the families that it knows, so that its rules hold."""
        if self._derived.family is not None:
            return self._derived.parse(ids, finish_reason, tools=tools)
        parsed = self._renderer.parse_response(list(ids), tools=list(tools) or None, prompt_ids=self._prompt)
        return Reply(
            text=parsed.content,
            tool_calls=tuple(_call(call, finish_reason) for call in parsed.tool_calls),
            reasoning=parsed.reasoning_content or "",
            finish_reason=finish_reason,
            token_ids=tuple(ids),
            written=self._derived.encoder.decode([index for index in ids if index not in self.stop_ids]),
        )

    def _hidden(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[list[Message], list[ToolSchema] | None]:
        encoder = self._derived.encoder
        return [plain_message(message, encoder) for message in messages], [encoder.hide_in(t) for t in tools] or None


def family_renderer(
    tokenizer: "PreTrainedTokenizerBase", derived: Derived, template_kwargs: Mapping[str, Any] | None = None
) -> FamilyRenderer | None:
    """The family's renderer for this tokenizer, None where there is none that agrees with its template.

    A family is known by the exact name of its published model, so a fine-tune under another name gets the
    derived renderer.
    """
    try:
        renderers, base = importlib.import_module("renderers"), importlib.import_module("renderers.base")
    except ImportError as error:  # absent, or installed without one of its own dependencies
        log.info("no renderers by family (%s); using the chat template", error)
        return None
    if tokenizer.name_or_path not in base.MODEL_RENDERER_MAP:
        return None
    try:
        known = renderers.create_renderer(
            LiteralTokenizer(tokenizer, derived.encoder),
            renderers.AutoRendererConfig(thinking_retention="all"),
            chat_template_kwargs=dict(template_kwargs or {}),
        )
        family = FamilyRenderer(known, derived)
        shapes = (*TEXT_SHAPES, *TOOL_SHAPES)
        check_bridges(family, derived.full, shapes, derived.encoder.decode, derived.bridge_starts)
    except (TemplateError, ValueError, TypeError, KeyError, AssertionError) as error:
        log.info("%s: its family's renderer does not fit its template (%s)", tokenizer.name_or_path, error)
        return None
    return family


def _call(call: Any, finish_reason: FinishReason) -> ToolCall:
    arguments = call.arguments if call.status == "ok" and isinstance(call.arguments, dict) else None
    error = None
    if arguments is None:
        cut = finish_reason != "stop" and call.status == "unclosed_block"
        error = CUT_OFF if cut else f"the call could not be read ({call.status}): {call.raw[:200]}"
    raw = call.arguments if isinstance(call.arguments, str) else None
    return ToolCall(call.name or "", arguments, call.id or "", error, raw)
