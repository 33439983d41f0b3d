"""A token policy that plays a script: texts in, token ids with fixed log-probabilities out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiltyard.policies.base import Sampled, TokenRequest
from tiltyard.types import FinishReason

Line = str | tuple[int, ...] | Exception
"""One turn of a script: a text that the end token follows, token ids as they are, or an error to raise."""


@dataclass(slots=True)
class ScriptedTokens:
    """Answers the requests of each episode with the lines of its script, one a turn.

    A text is encoded and the tokenizer's end token put after it; a line that is longer than what is asked for is cut
    there, and ends with "length". Token ids come as they are and end with "stop" if the end token is the last.
    The log-probability of the token at position `i` of a turn is `-0.25 - 0.125 * (i % 4)`.

    Attributes:
        tokenizer: Encodes the texts.
        scripts: The lines of an episode by its id, or of every episode when it is one list.
        context_length: The most tokens that a sequence may have; None is no bound.
        requests: Each batch that was asked for, with copies of the ids.
        released: The keys that were given back, in order.
    """

    tokenizer: Any
    scripts: Mapping[str, Sequence[Line]] | Sequence[Line]
    context_length: int | None = None
    requests: list[list[TokenRequest]] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    _turns: dict[str, int] = field(default_factory=dict)

    def sample(self, requests: Sequence[TokenRequest]) -> list[Sampled]:
        """Play the next line of each episode.

        Raises:
            Exception: A line of the script is an error; it is raised for the whole batch.
            IndexError: A script has no line left.
        """
        self.requests.append([TokenRequest(r.key, tuple(r.ids), r.max_tokens, r.seed) for r in requests])
        lines = [self._next_line(request.key) for request in requests]
        for line in lines:
            if isinstance(line, Exception):
                raise line
        return [self._play(line, request) for line, request in zip(lines, requests, strict=True)]

    def release(self, keys: Sequence[str]) -> None:
        """Forget where these episodes are; an episode with the same id begins its script again."""
        self.released.extend(keys)
        for key in keys:
            self._turns.pop(key, None)

    def _next_line(self, key: str) -> Line:
        script = self.scripts[key] if isinstance(self.scripts, Mapping) else self.scripts
        turn = self._turns.get(key, 0)
        self._turns[key] = turn + 1
        if turn >= len(script):
            raise IndexError(f"the script of episode {key!r} has {len(script)} lines and a further one was asked for")
        return script[turn]

    def _play(self, line: Line, request: TokenRequest) -> Sampled:
        if isinstance(line, str):
            ids = (*self.tokenizer.encode(line, add_special_tokens=False), self.tokenizer.eos_token_id)
        elif isinstance(line, tuple):
            ids = line
        else:
            raise TypeError(f"a line of a script is a text, token ids or an error, got {line!r}")
        ended = bool(ids) and ids[-1] == self.tokenizer.eos_token_id and len(ids) <= request.max_tokens
        # Ids without the end token stand for a stop string, unless they fill what was asked for.
        finish: FinishReason = "stop" if ended or len(ids) < request.max_tokens else "length"
        ids = ids[: request.max_tokens]
        return Sampled(tuple(ids), tuple(-0.25 - 0.125 * (i % 4) for i in range(len(ids))), finish)
