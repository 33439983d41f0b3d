"""The forms that rows of supervised data come in, each read into one of two: messages, or plain text."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiltyard._boundary import shown
from tiltyard.errors import ConfigurationError
from tiltyard.types import Message, ToolSchema

PREFERENCE_FORMS = "'chosen' and 'rejected', with or without 'prompt'"

PromptOf = Callable[[Mapping[str, Any]], Sequence[Message]]
"""Makes the prompt of a row, where a template of the manifest says how."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation in two parts; where nothing divides them, all of it is the answer.

    Attributes:
        prompt: What comes before; assistant turns in it are not trained.
        answer: What follows; its assistant turns are what is to be learned.
        tools: The schemas that the model is shown.
    """

    prompt: tuple[Message, ...]
    answer: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """A plain text in two parts; `prompt` is None where the parts are to be found by comparing two texts."""

    prompt: str | None
    answer: str


@dataclass(frozen=True, slots=True)
class Preference:
    """Two answers to one prompt."""

    chosen: Chat | Text
    rejected: Chat | Text


def check_columns(columns: Sequence[str], objective: str, response_column: str, name: str, *, prompt: bool) -> None:
    """Refuse rows that have none of the forms.

    Args:
        columns: What the rows have.
        objective: "sft" or "preference".
        response_column: The answer's, for "sft".
        name: Names the rows.
        prompt: Something else than the rows' column makes the prompt.

    Raises:
        ConfigurationError: Columns are missing; the message lists those that are there.
    """
    has = set(columns)
    if objective == "preference":
        whole, forms = {"chosen", "rejected"} <= has, PREFERENCE_FORMS
    else:
        answered = bool(_response(has, response_column))
        talks = response_column == "response" and not prompt
        whole = (talks and "messages" in has) or (answered and (prompt or "prompt" in has))
        answers = "'response' or 'completion'" if response_column == "response" else repr(response_column)
        forms = ("'messages', or " if talks else "") + ("" if prompt else "'prompt' with ") + answers
    if not whole:
        raise ConfigurationError(
            f"rows for {objective} have the columns {forms}; {name} has {', '.join(map(repr, columns)) or 'none'}. "
            "Rename its columns with `columns`"
            + ("" if objective == "preference" else ", or name the answer's with `response_column`")
        )


def read_sft(row: Mapping[str, Any], response_column: str, prompt_of: PromptOf | None, *, plain: bool) -> Chat | Text:
    """Read one row for SFT.

    Args:
        row: Of columns that `check_columns` let pass.
        response_column: The answer's.
        prompt_of: Makes the prompt in place of the row's column.
        plain: Texts stay texts; otherwise a prompt is a user's message and an answer an assistant's.

    Raises:
        ConfigurationError: A value is of another type.
    """
    tools = _tools(row)
    response = _response(set(row), response_column)
    if "messages" in row and (response is None or (response_column == "response" and prompt_of is None)):
        return Chat((), _messages(row["messages"], "messages"), tools)
    assert response is not None
    prompt = list(prompt_of(row)) if prompt_of else row["prompt"]
    return _with_prompt(prompt, row[response], response, tools, plain=plain)


def read_preference(row: Mapping[str, Any], prompt_of: PromptOf | None, *, plain: bool) -> Preference:
    """Read one pair.

    Two conversations that begin with the prompt share it as far as their messages are equal; whatever comes before the
    first difference is the prompt. Two texts without a prompt share the tokens that they have in common.

    Raises:
        ConfigurationError: A value is of another type, or a given prompt is not that of the conversations.
    """
    tools = _tools(row)
    chosen, rejected = row["chosen"], row["rejected"]
    prompt = list(prompt_of(row)) if prompt_of else row.get("prompt")
    if _opens(chosen) and _opens(rejected):
        return _divided(_messages(chosen, "chosen"), _messages(rejected, "rejected"), prompt, tools)
    if prompt is None:
        if isinstance(chosen, str) and isinstance(rejected, str):
            return Preference(Text(None, chosen), Text(None, rejected))
        raise ConfigurationError(
            "'chosen' and 'rejected' are answers without a question: give a 'prompt', or let both begin with it; "
            f"got chosen {shown(chosen)}"
        )
    pair = [
        _with_prompt(prompt, value, name, tools, plain=plain)
        for name, value in (("chosen", chosen), ("rejected", rejected))
    ]
    return Preference(pair[0], pair[1])


def _response(columns: set[str], response_column: str) -> str | None:
    if response_column in columns:
        return response_column
    return "completion" if response_column == "response" and "completion" in columns else None


def _with_prompt(prompt: Any, answer: Any, name: str, tools: tuple[ToolSchema, ...], *, plain: bool) -> Chat | Text:
    if isinstance(prompt, str) and isinstance(answer, str) and plain:
        return Text(prompt, answer)
    asked = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else _messages(prompt, "prompt")
    if answer is None or isinstance(answer, str):
        return Chat(asked, ({"role": "assistant", "content": answer},) if answer else (), tools)
    return Chat(asked, _messages([answer] if isinstance(answer, Mapping) else answer, name), tools)


def _opens(value: Any) -> bool:
    """Whether a value is a conversation from its beginning, and not an answer only."""
    roles = [m.get("role") for m in value if isinstance(m, Mapping)] if isinstance(value, list | tuple) else []
    return bool(roles) and roles[0] in ("system", "developer", "user")


def _divided(
    chosen: tuple[Message, ...], rejected: tuple[Message, ...], prompt: Any, tools: tuple[ToolSchema, ...]
) -> Preference:
    same = 0
    while same < min(len(chosen), len(rejected)) - 1 and chosen[same] == rejected[same]:
        same += 1
    if prompt is not None:
        given = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else _messages(prompt, "prompt")
        begins = [m for m in chosen[:same] if m["role"] != "system"][: len(given)]
        if tuple(begins) != given and chosen[: len(given)] != given:
            raise ConfigurationError(
                f"the conversations do not begin with the 'prompt' {shown(prompt)}, but with {shown(chosen[:1])}; "
                "drop the column 'prompt', or keep only the answers in 'chosen' and 'rejected'"
            )
    return Preference(Chat(chosen[:same], chosen[same:], tools), Chat(rejected[:same], rejected[same:], tools))


def _messages(value: Any, name: str) -> tuple[Message, ...]:
    if not isinstance(value, list | tuple) or not all(
        isinstance(message, Mapping) and isinstance(message.get("role"), str) for message in value
    ):
        raise ConfigurationError(
            f"{name!r} must be text or a list of messages such as {{'role': 'user', 'content': '…'}}, "
            f"got {shown(value)}"
        )
    # A table has a place for every key in every message, empty where a message has none.
    return tuple({key: item for key, item in message.items() if item is not None} for message in value)


def _tools(row: Mapping[str, Any]) -> tuple[ToolSchema, ...]:
    value = row.get("tools")
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError as error:
            raise ConfigurationError(f"'tools' is text that is no JSON ({error}): {shown(value)}") from error
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(tool, Mapping) for tool in value):
        raise ConfigurationError(f"'tools' must be a list of function schemas, or its JSON text, got {shown(value)}")
    return tuple(dict(tool) for tool in value)
