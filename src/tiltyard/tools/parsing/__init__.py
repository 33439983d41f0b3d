"""Tool calls in a model's text, by family.

The rules, the same for every family: a call is run only when it stands outside the thinking, its block is
closed and it is sound as written. Everything else that was meant as a call becomes a `ToolCall` with an
`error` for the model; nothing is repaired, dropped or guessed. Arguments that are absent are `{}`; a string
stays as it was written, and what a family writes as bare text is typed by the tool's schema.
"""

from tiltyard.tools.parsing.family import Family
from tiltyard.tools.parsing.reading import CUT_OFF, THINK_CLOSE, THINK_OPEN, ParsedText
from tiltyard.tools.parsing.recognition import CallTurn, recognise
from tiltyard.tools.parsing.registry import FAMILIES, HERMES, family_named, parse_text
from tiltyard.tools.parsing.round_trip import round_trip_problem

__all__ = [
    "CUT_OFF",
    "FAMILIES",
    "HERMES",
    "THINK_CLOSE",
    "THINK_OPEN",
    "CallTurn",
    "Family",
    "ParsedText",
    "family_named",
    "parse_text",
    "recognise",
    "round_trip_problem",
]
