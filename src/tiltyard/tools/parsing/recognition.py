"""Which family a chat template belongs to."""

from collections.abc import Mapping
from typing import Any

from tiltyard.tools.parsing.family import Family
from tiltyard.tools.parsing.registry import FAMILIES


def recognise(
    template: str, call_turn: str = "", name: str = "", arguments: Mapping[str, Any] | None = None
) -> Family | None:
    """The family of a chat template; None where it is not one of ours.

    A template that writes calls shows its family: it is the one that reads such a call back. One that does
    not is known by the texts that it must hold.

    Args:
        template: The chat template's own text.
        call_turn: What it writes for an assistant's turn with one call, up to the end of the turn; "" where
            it cannot be told.
        name: The tool that is called in it.
        arguments: The arguments of that call.
    """
    if call_turn:
        for family in FAMILIES.values():
            calls = family.parse(call_turn).calls
            if [(call.name, call.arguments) for call in calls] == [(name, dict(arguments or {}))]:
                return family
        return None
    known = [family for family in FAMILIES.values() if family.signs and all(sign in template for sign in family.signs)]
    return max(known, key=lambda family: len(family.signs), default=None)
