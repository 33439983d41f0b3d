"""Which family a chat template belongs to."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tiltyard.tools.parsing.family import Family
from tiltyard.tools.parsing.registry import FAMILIES


@dataclass(frozen=True, slots=True)
class CallTurn:
    """What a chat template writes for an assistant's turn with one call, from where the model would begin.

    Attributes:
        text: The turn, special tokens and end included.
        special_tokens: Those of the tokenizer; a family's parser is given only those that it reads.
        name: The tool that is called.
        arguments: The arguments of the call.
    """

    text: str
    special_tokens: Collection[str]
    name: str
    arguments: Mapping[str, Any]

    def read_by(self, family: Family) -> bool:
        """Whether the family's parser reads the call back."""
        text = self.text
        for token in self.special_tokens:
            if token in text and not family.reads(token):
                text = text.replace(token, "")
        calls = family.parse(text).calls
        return [(call.name, call.arguments) for call in calls] == [(self.name, self.arguments)]


def recognise(template: str, call_turn: CallTurn | None = None) -> Family | None:
    """The family of a chat template; None where it is not one of ours.

    A template that writes calls shows its family: it is the one that reads such a call back. One that does
    not (`call_turn` is None) is known by the texts that it must hold.
    """
    if call_turn is not None:
        return next((family for family in FAMILIES.values() if call_turn.read_by(family)), None)
    known = [family for family in FAMILIES.values() if family.signs and all(sign in template for sign in family.signs)]
    return max(known, key=lambda family: len(family.signs), default=None)
