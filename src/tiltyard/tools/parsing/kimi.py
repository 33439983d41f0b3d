"""Kimi K2: calls in one section, each `functions.name:0` and its JSON arguments.

The whole of `functions.name:0` is the call's id, as the chat template wants it back with the result.
"""

import re
from collections.abc import Mapping
from typing import Any

from tiltyard.tools.parsing.reading import dumped_arguments, tagged
from tiltyard.tools.parsing.section import Section

OPEN, CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL_OPEN, ARGUMENTS, CALL_CLOSE = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def _name_and_id(head: re.Match[str]) -> tuple[str, str]:
    return head[2], head[1]


SECTION = Section(
    opens=OPEN,
    closes=CLOSE,
    call_opens=CALL_OPEN,
    call_closes=CALL_CLOSE,
    head=re.compile(rf"\s*((?:functions\.)?([\w.\-/]+)(?::\d+)?)\s*{re.escape(ARGUMENTS)}\s*"),
    name_and_id=_name_and_id,
    after=re.compile(rf"\s*{re.escape(CALL_CLOSE)}"),
    form=f"write {OPEN}{CALL_OPEN}functions.name:0{ARGUMENTS}{{…}}{CALL_CLOSE}{CLOSE}",
)


def write(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the model writes it, the first of its turn."""
    return f"{OPEN}{CALL_OPEN}functions.{name}:0{ARGUMENTS}{dumped_arguments(arguments)}{CALL_CLOSE}{CLOSE}"


scan = tagged((OPEN, CALL_OPEN), SECTION.block())
