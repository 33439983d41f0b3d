"""What a policy is: something that answers prompts, as messages or as tokens."""

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from tiltyard._boundary import shown
from tiltyard.errors import ConfigurationError
from tiltyard.types import FinishReason, Prompt, Reply


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling distribution, shared by sampler and trainer.

    Attributes:
        temperature: Divides the logits; 0 takes the most likely token (its log-probability is then
            that of the distribution at temperature 1).
        top_p: Keeps the smallest set of tokens whose probabilities sum to at least this; 1 keeps all.
        top_k: Keeps this many tokens; 0 keeps all.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if not (_is_number(self.temperature) and 0 <= self.temperature < float("inf")):
            raise ConfigurationError(f"temperature must be >= 0 and finite, got {self.temperature!r}")
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ConfigurationError(f"top_p must be in (0, 1], got {self.top_p!r}")
        if not isinstance(self.top_k, int) or isinstance(self.top_k, bool) or self.top_k < 0:
            raise ConfigurationError(f"top_k must be a whole number >= 0 (0 = all), got {self.top_k!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """One sequence to continue.

    Attributes:
        key: The episode's id. A policy may keep what it computed for a key and feed only what is new.
        ids: The whole sequence so far; for one key each request extends the one before plus its sample.
        max_tokens: The most tokens to sample, at least 1.
        seed: What the randomness of this sample derives from, so that it does not depend on the batch.
        replay: What is sampled is known already and will be dropped: it is asked for so that the batch has the make-up
            that it had, and with it the rounding of the others.
    """

    key: str
    ids: Sequence[int]
    max_tokens: int
    seed: int
    replay: bool = False


@dataclass(frozen=True, slots=True)
class Sampled:
    """One continuation: the ids with the end token where it was sampled, and a log-probability for each.

    The log-probabilities are those of the distribution that was sampled from (`Sampling` applied). `version` says
    with which weights: how many training steps they had learned from; None where the policy does not know.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    version: int | None = None


class TokenPolicy(Protocol):
    """A policy that continues token sequences: a local model."""

    @property
    def context_length(self) -> int | None:
        """The most tokens that a sequence may have; None when the model sets no bound."""
        ...

    def sample(self, requests: Sequence[TokenRequest]) -> list[Sampled]:
        """Continue each sequence; the results are in the order of the requests."""
        ...

    def release(self, keys: Sequence[str]) -> None:
        """Forget what is kept for these episodes; unknown keys are ignored."""
        ...


class Policy(Protocol):
    """A policy that answers messages: a served model, or a script."""

    def reply(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """Answer each prompt; the results are in the order of the prompts."""
        ...


class AsyncPolicy(Protocol):
    """A policy that answers conversations without blocking its event loop: a served model, or a script.

    A run enters it (`async with policy:`) on its own event loop, so that connections are kept for the run and given
    back after it. Runs may be inside at the same time, on one loop or on several.
    """

    async def reply(self, prompt: Prompt, *, max_tokens: int | None) -> Reply:
        """Answer one prompt with at most `max_tokens` sampled tokens; None leaves the bound to the server.

        Raises:
            PromptTooLongError: The prompt leaves no room in the context.
            PolicyError: The model or its server failed for this prompt.
        """
        ...

    async def __aenter__(self) -> Any:
        """Keep what serves several replies, on the loop that is running."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Give it back."""
        ...


def check_token_policy(policy: object) -> None:
    """Check that a policy continues token sequences.

    Raises:
        ConfigurationError: It does not.
    """
    if isinstance(policy, type) or not callable(getattr(policy, "sample", None)):
        raise ConfigurationError(
            f"policy must continue token sequences, as HFPolicy(model, ...) does, got {shown(policy)}; a served model "
            "goes to APIMultiTurnRollout"
        )


def check_async_policy(policy: object) -> None:
    """Check that a policy answers messages, and can be entered.

    Raises:
        ConfigurationError: It does not.
    """
    if isinstance(policy, type) or not (callable(getattr(policy, "reply", None)) and hasattr(policy, "__aenter__")):
        raise ConfigurationError(
            f"the policy must answer messages, as OpenAI(model=..., base_url=...) does, got {shown(policy)}; a local "
            "model goes to MultiTurnRollout, and a client of the package openai into OpenAI(model=..., client=...)"
        )
