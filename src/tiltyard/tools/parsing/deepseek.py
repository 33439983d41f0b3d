"""DeepSeek V3 and R1: calls in one section; a JSON block behind the name (V3, R1), or JSON behind it (V3.1)."""

import re
from collections.abc import Mapping
from typing import Any

from tiltyard.tools.parsing.reading import dumped_arguments, tagged
from tiltyard.tools.parsing.section import Section

_BAR = "\uff5c"  # the full-width bar that these tokens are spelled with
OPEN, CLOSE = f"<{_BAR}tool▁calls▁begin{_BAR}>", f"<{_BAR}tool▁calls▁end{_BAR}>"
CALL_OPEN, CALL_CLOSE = f"<{_BAR}tool▁call▁begin{_BAR}>", f"<{_BAR}tool▁call▁end{_BAR}>"
SEPARATOR = f"<{_BAR}tool▁sep{_BAR}>"


def _name_and_id(head: re.Match[str]) -> tuple[str, str]:
    return head[1] or head[2], ""


SECTION = Section(
    opens=OPEN,
    closes=CLOSE,
    call_opens=CALL_OPEN,
    call_closes=CALL_CLOSE,
    head=re.compile(
        rf"\s*(?:function\s*{SEPARATOR}\s*([\w.\-/:]+)[ \t]*(?:\n\s*(?:```(?:json)?\s*)?|(?={CALL_CLOSE}))"
        rf"|(?!function\s*{SEPARATOR}\s*```)([\w.\-/:]+)\s*{SEPARATOR}\s*(?:```(?:json)?\s*)?)"
    ),
    name_and_id=_name_and_id,
    after=re.compile(rf"\s*(?:```)?\s*{CALL_CLOSE}"),
    form=f"write {OPEN}{CALL_OPEN}function{SEPARATOR}name\n```json\n{{…}}\n```{CALL_CLOSE}{CLOSE}",
)


def write(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the model writes it."""
    return f"{OPEN}{CALL_OPEN}function{SEPARATOR}{name}\n```json\n{dumped_arguments(arguments)}\n```{CALL_CLOSE}{CLOSE}"


scan = tagged((OPEN, CALL_OPEN), SECTION.block())
