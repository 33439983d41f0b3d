"""A prompt as a template: `system_0`, `user_1`, `assistant_2`, …, with a row's columns in braces."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from string import Formatter
from typing import Any, Self

from tiltyard.errors import ConfigurationError
from tiltyard.types import Message

ROLES = ("system", "user", "assistant")
_KEY = re.compile(rf"({'|'.join(ROLES)})_(\d+)")
_FIELD = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Part:
    """One message of a template.

    Attributes:
        number: Its place.
        role: Who says it.
        pieces: Text as it is, and the name of the column that follows it; None after the last text.
    """

    number: int
    role: str
    pieces: tuple[tuple[str, str | None], ...]

    def filled(self, row: Mapping[str, Any]) -> Message:
        """The message of a row; what a row holds is put in as it is, braces too."""
        text = "".join(literal + ("" if name is None else as_text(row[name])) for literal, name in self.pieces)
        return {"role": self.role, "content": text}


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """The messages of a prompt, filled in with one row at a time.

    Attributes:
        parts: The messages in their order.
    """

    parts: tuple[Part, ...]

    @classmethod
    def read(cls, template: Mapping[str, str], columns: Sequence[str], name: str = "the rows") -> Self:
        """Check a template against the rows that it is for.

        Args:
            template: The messages by `role_number`; the numbers order them.
            columns: What the rows have.
            name: What the rows are called in an error.

        Raises:
            ConfigurationError: A key or a text is malformed, two messages have one place, the prompt has no message
                of a user, or asks for a column that is not there.
        """
        if not isinstance(template, Mapping):
            raise ConfigurationError(
                "a prompt_template maps a role and a place to a text, such as {'user_0': '{question}'}, got "
                f"{template!r:.200}"
            )
        parts = sorted((message_of(key, text) for key, text in template.items()), key=lambda part: part.number)
        if twice := [one.number for one, other in pairwise(parts) if one.number == other.number]:
            raise ConfigurationError(f"prompt_template has two messages with the number {twice[0]}; each has its own")
        asked = parts[:-1] if parts and parts[-1].role == "assistant" else parts
        if not asked or asked[-1].role != "user":
            raise ConfigurationError(
                "prompt_template must end with a message of the user, such as user_1, or with the beginning of the "
                f"answer to it, such as assistant_2; got {', '.join(template) or 'nothing'}"
            )
        wanted = dict.fromkeys(name for part in parts for _, name in part.pieces if name is not None)
        if missing := [field for field in wanted if field not in columns]:
            raise ConfigurationError(
                f"prompt_template asks for {', '.join(f'{{{field}}}' for field in missing)}, which {name} does not "
                f"have; its columns are: {', '.join(map(repr, columns))} (a brace of the text itself is written twice)"
            )
        return cls(tuple(parts))

    def messages(self, row: Mapping[str, Any]) -> list[Message]:
        """The prompt of one row; where it ends with the assistant, the answer goes on from there."""
        return [part.filled(row) for part in self.parts]


def message_of(key: str, text: str) -> Part:
    """One message of a template.

    Raises:
        ConfigurationError: The key is not `role_number`, or the text has a brace that is not closed, or something
            other than a column's name in braces.
    """
    found = _KEY.fullmatch(key) if isinstance(key, str) else None
    if found is None:
        raise ConfigurationError(
            f"{key!r} is no message of a prompt_template; its keys are a role and a place, such as system_0, user_1, "
            "assistant_2"
        )
    if not isinstance(text, str):
        raise ConfigurationError(f"{key} of a prompt_template must be text, got {text!r:.200}")
    try:
        pieces = [(literal, name, spec, how) for literal, name, spec, how in Formatter().parse(text)]
    except ValueError as error:
        raise ConfigurationError(f"{error} in {text!r}; a brace of the text itself is written twice") from error
    for _, name, spec, how in pieces:
        if name is not None and (spec or how or not _FIELD.fullmatch(name)):
            raise ConfigurationError(
                f"{{{name}}} in {text!r} is no column's name; a brace of the text itself is written twice"
            )
    role, number = found.groups()
    return Part(int(number), role, tuple((literal, name) for literal, name, _, _ in pieces))


def as_text(value: Any) -> str:
    """A row's value in a prompt: text as it is, a list or mapping as JSON, None as nothing."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return "" if value is None else str(value)
