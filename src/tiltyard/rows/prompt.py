"""The prompt of a row: by a template, or from the column that has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tiltyard.errors import ConfigurationError
from tiltyard.rows.table import Rows
from tiltyard.rows.template import PromptTemplate, as_text
from tiltyard.types import Message

PROMPT_COLUMNS = ("messages", "prompt", "question")
"""Where a prompt is looked for without a template, in this order: text, or a list of messages."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """How the rows of one data set are asked: by `template`, or else by what `column` has."""

    template: PromptTemplate | None
    column: str

    @classmethod
    def of(cls, rows: Rows, template: Mapping[str, str] | None) -> Self:
        """Find out how rows are asked, and try it with the first.

        Raises:
            ConfigurationError: The template asks for a column that is not there; or there is no template and no
                column with a prompt; or the first row makes no prompt.
        """
        if template:
            made = cls(PromptTemplate.read(template, rows.columns, rows.name), "")
        else:
            found = next((name for name in PROMPT_COLUMNS if name in rows.columns), None)
            if found is None:
                raise ConfigurationError(
                    f"{rows.name} has no column {', '.join(map(repr, PROMPT_COLUMNS[:-1]))} or {PROMPT_COLUMNS[-1]!r} "
                    f"to ask; its columns are: {', '.join(map(repr, rows.columns))}. Give a prompt_template, or rename "
                    "one with `columns`"
                )
            made = cls(None, found)
        made.messages(rows[0], f"row 0 of {rows.name}")
        return made

    def messages(self, row: Mapping[str, Any], where: str) -> list[Message]:
        """The prompt of a row.

        Raises:
            ConfigurationError: Its column has no prompt: no text, or messages that do not end with the user's.
        """
        if self.template is not None:
            return self.template.messages(row)
        value = row[self.column]
        if isinstance(value, str) and value:
            return [{"role": "user", "content": value}]
        if not isinstance(value, list) or not value or not all(map(_is_message, value)):
            raise ConfigurationError(
                f"column {self.column!r} of {where} is {value!r:.200}; it must be text, or a list of messages with "
                "role and content"
            )
        if value[-1]["role"] == "assistant":
            raise ConfigurationError(
                f"column {self.column!r} of {where} ends with an answer, which the model is to give; take the answer "
                "out, or begin it with assistant_N of a prompt_template"
            )
        return [{"role": message["role"], "content": as_text(message["content"])} for message in value]


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)
