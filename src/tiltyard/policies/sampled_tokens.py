"""The ids and log-probabilities in a server's answer, in each of the forms that servers give them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_TOKEN_ID = re.compile(r"token(?:_id)?:(\d+)")


@dataclass(frozen=True, slots=True)
class AnswerTokens:
    """The tokens of one answer; each is None where the server did not give it whole.

    Attributes:
        ids: The sampled ids.
        logprobs: The log-probability of each sampled id, and never that of the most likely one in its place.
        prompt_ids: The ids of the prompt.
    """

    ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    prompt_ids: tuple[int, ...] | None = None


def read_tokens(data: Mapping[str, Any], choice: Mapping[str, Any]) -> AnswerTokens:
    """The tokens of `choice`, an element of the response `data`.

    Ids are `choice.token_ids` (vLLM with `return_token_ids`); or they stand with the log-probabilities, as `id`
    (llama.cpp) or as a name `token_id:123` (vLLM with `return_tokens_as_token_ids`). Ids that contradict each other
    count as not given.
    """
    entries = _entries(choice)
    named = _named_ids(entries)
    ids = _ids(choice.get("token_ids"))
    if ids is None:
        ids = named
    elif named is not None and named != ids[: len(named)]:
        ids = None
    prompt = data.get("prompt_token_ids")
    return AnswerTokens(
        ids, _logprobs(entries, ids), _ids(prompt if prompt is not None else choice.get("prompt_token_ids"))
    )


def _entries(choice: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    return content if isinstance(content, list) and all(isinstance(entry, Mapping) for entry in content) else ()


def _named_ids(entries: Sequence[Mapping[str, Any]]) -> tuple[int, ...] | None:
    if not entries:
        return None
    if "id" in entries[0]:
        return _ids([entry.get("id") for entry in entries])
    matches = [_TOKEN_ID.fullmatch(str(entry.get("token", ""))) for entry in entries]
    return tuple(int(match[1]) for match in matches if match) if all(matches) else None


def _logprobs(entries: Sequence[Mapping[str, Any]], ids: tuple[int, ...] | None) -> tuple[float, ...] | None:
    if not entries:
        return () if ids == () else None
    values = [entry.get("logprob") for entry in entries]
    if ids is not None and len(values) != len(ids):
        return None
    if not all(type(value) in (float, int) for value in values):
        return None
    return tuple(map(float, values))  # pyright: ignore[reportArgumentType]  # all are numbers: looked at above


def _ids(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        return None
    return tuple(value)
