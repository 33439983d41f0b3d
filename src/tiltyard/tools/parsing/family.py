"""What a family of models is, to whoever reads or writes its tool calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiltyard.tools.messages import arguments_text
from tiltyard.tools.parsing.reading import THINK_CLOSE, THINK_OPEN, ParsedText, Reading, Scan
from tiltyard.types import FinishReason, ToolCall, ToolSchema

IN_REASONING = "the call stands inside the thinking and was not run; close it with {close}, then call"


@dataclass(frozen=True, slots=True)
class Family:
    """One way of writing tool calls, and of reading them.

    Attributes:
        name: What it is chosen by.
        scan: Takes a sampled text apart.
        write: A call of this name with these arguments, as the model writes it.
        markers: Beginnings of the special tokens that `scan` reads, closing ones included; those of the
            thinking apart. Other special tokens are no part of the text it is given.
        signs: Texts that all stand in a chat template of the family; () for one that no template shows.
        think: What opens and closes the thinking.
        stops: Special tokens that end a sampled turn, besides the chat template's own end of a message. One
            that `scan` reads ends no turn unless it is named here: a turn may have several messages.
        instruction: How to call, for a prompt whose template does not say; "" shows what `write` gives.
        recover_thinking: A turn of which nothing is left but thinking with calls in it runs these calls.
            Otherwise they are answered with an error.
    """

    name: str
    scan: Scan
    write: Callable[[str, Mapping[str, Any]], str]
    markers: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    think: tuple[str, str] = (THINK_OPEN, THINK_CLOSE)
    stops: tuple[str, ...] = ()
    instruction: str = ""
    recover_thinking: bool = False

    def parse(
        self,
        text: str,
        finish_reason: FinishReason = "stop",
        *,
        thinking_open: bool = False,
        reasoning: str = "",
        tools: Sequence[ToolSchema] = (),
    ) -> ParsedText:
        """Take a sampled text apart; never raises, whatever the text.

        Args:
            text: What was sampled, special tokens other than `markers` left out.
            finish_reason: Whether sampling was cut.
            thinking_open: The prompt ended inside the thinking, so that the text begins in it.
            reasoning: Thinking that came apart from the text, as some servers give it.
            tools: The tools that the model was shown: they type arguments that the family writes untyped.
        """
        cut = finish_reason != "stop"
        found = self._scanned(text, tools, thinking_open, cut=cut)
        thought = "\n".join(piece.strip("\n") for piece in [*([reasoning] if reasoning else []), *found.reasoning])
        shown, calls = "".join(found.visible), found.calls
        if calls or found.reasoning:
            shown = shown.strip()
        if thought and not shown.strip() and not calls and not cut:
            drafted = self._scanned(thought, tools, thinking_open=False, cut=False).calls
            if drafted and self.recover_thinking:
                calls = drafted
            elif drafted:
                calls = [ToolCall("", None, error=IN_REASONING.format(close=self.think[1]), raw="")]
        return ParsedText(shown, thought, tuple(calls))

    def reads(self, token: str) -> bool:
        """Whether a special token of this text is part of what `parse` is given."""
        return token.startswith((*self.markers, *self.think))

    def render_call(self, call: ToolCall) -> str:
        """A call as the model writes it; one that could not be read is written as it was."""
        if call.arguments is None:
            return arguments_text(call)
        return self.write(call.name, call.arguments)

    def how_to_call(self) -> str:
        """What a prompt says about calling, where its template does not."""
        if self.instruction:
            return self.instruction
        return "For each function call, write:\n" + self.write("<function-name>", {"<argument-name>": "<value>"})

    def _scanned(self, text: str, tools: Sequence[ToolSchema], thinking_open: bool, *, cut: bool) -> Reading:
        reading = Reading(text, cut=cut, tools=tools)
        self.scan(reading, thinking_open)
        return reading
