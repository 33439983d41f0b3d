"""Families whose calls stand in one section, each between tags of its own, with JSON arguments: DeepSeek and Kimi."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from tiltyard.tools.messages import arguments_text, parse_arguments
from tiltyard.tools.parsing.reading import CUT_OFF, Block, Reading
from tiltyard.types import ToolCall


@dataclass(frozen=True, slots=True)
class Section:
    """The tags of a section.

    Attributes:
        opens: Opens the section.
        closes: Closes it.
        call_opens: Opens one call.
        call_closes: Closes it.
        head: What stands between a call's opening tag and its arguments.
        name_and_id: The tool's name and the call's id, from the match of `head`.
        after: May stand between the arguments and the call's closing tag.
        form: How to write a call, for the model.
    """

    opens: str
    closes: str
    call_opens: str
    call_closes: str
    head: re.Pattern[str]
    name_and_id: Callable[[re.Match[str]], tuple[str, str]]
    after: re.Pattern[str]
    form: str

    def block(self) -> Block:
        """The part of a scan that reads a section; a call outside of one is refused."""

        def block(reading: Reading, tag: int, start: int) -> int:
            if reading.text.startswith(self.call_opens, tag):
                return self._broken(reading, start, f"the call stands outside of {self.opens}")
            return self._section(reading, start)

        return block

    def _section(self, reading: Reading, start: int) -> int:
        text, first = reading.text, len(reading.calls)
        position = reading.space(start)
        while text.startswith(self.call_opens, position):
            position = reading.space(self._call(reading, position + len(self.call_opens)))
        if text.startswith(self.closes, position):
            if len(reading.calls) == first:
                reading.broken(f"there is no call in the section; {self.form}", "")
            return position + len(self.closes)
        got = text[position : position + 40]
        problem = f"a call or {self.closes} was expected, got {got!r}" if got else f"{self.closes} is missing"
        if len(reading.calls) == first:
            return reading.broken_block(position, f"{problem}; {self.form}", opens=(self.opens,), closes=(self.closes,))
        # A section that does not end as it should may be one that was cut: nothing of it runs.
        reading.calls[first:] = [self._refused(reading, call, problem) for call in reading.calls[first:]]
        close, following = reading.first((self.closes,), position), reading.first((self.opens,), position)
        return close[1] if close[0] <= following[0] else following[0]

    def _refused(self, reading: Reading, call: ToolCall, problem: str) -> ToolCall:
        if call.error is not None:
            return call
        error = CUT_OFF if reading.cut else f"{problem}; {self.form}"
        return replace(call, arguments=None, error=error, raw=arguments_text(call))

    def _call(self, reading: Reading, start: int) -> int:
        text, head = reading.text, self.head.match(reading.text, start)
        if head is None:
            return self._broken(reading, start, f"the call has no name, got {text[start : start + 40]!r}")
        name, call_id = self.name_and_id(head)
        position, arguments, problem = head.end(), {}, None
        if not self.after.match(text, position):
            try:
                value, position = reading.json(position)
            except ValueError as error:
                return self._broken(reading, start, f"the arguments of {name!r} are not valid JSON ({error})")
            arguments, problem = parse_arguments(name, value)
        close = self.after.match(text, position)
        if close is None:
            if reading.space(position) == len(text):
                return self._broken(
                    reading, start, f"the call of {name!r} is not closed; end it with {self.call_closes}"
                )
            got = text[position : position + 40]
            return self._broken(reading, start, f"the arguments of {name!r} must be one JSON object, got more: {got!r}")
        raw = text[head.end() : position] if problem else None
        reading.calls.append(ToolCall(name, arguments, call_id, problem, raw))
        return close.end()

    def _broken(self, reading: Reading, start: int, error: str) -> int:
        """Add the call as one that cannot run; the section's end is left for the section."""
        return reading.broken_block(
            start, f"{error}; {self.form}", opens=(self.call_opens, self.opens, self.closes), closes=(self.call_closes,)
        )
