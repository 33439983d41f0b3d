"""What a run's tokens went through, counted, and one sentence that says whether they can be trusted."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tiltyard.errors import TranscriptError
from tiltyard.tokens.transcript import Transcript

MEAN_DIFFERENCE_NATS = 0.01
"""The mean distance between the sampler's and the trainer's log-probabilities that passes as one distribution.

Two paths through one fp32 model differ by about 1e-5 nats on average, through a bf16 model by a few 1e-3.
"""

MAX_DIFFERENCE_NATS = 0.5
"""The largest such distance of a single token that passes; bf16 reaches 0.1 to 0.3 on unlikely tokens."""


@dataclass(slots=True)
class Ledger:
    """Counts over a run. Ledgers of parts of a run add up with `+=`.

    Attributes:
        episodes: Transcripts seen.
        turns: Turns that the policy sampled.
        tokens: All tokens of those transcripts.
        sampled: Those that the policy sampled.
        without_logprob: Sampled tokens for which the sampler gave no log-probability.
        extended: Prompts that began with exactly the ids seen and sampled before.
        forks: Prompts that did not: what was sampled earlier was not what the model saw later.
        compared: Tokens whose log-probability the trainer computed again before its first change of the weights.
        difference_sum: The sum over them of the distance between the two, in nats.
        difference_max: The largest of these distances.
        rewrites_history: What the chat template would have changed in earlier turns (see `Renderer`); it did
            not, as ids are append-only, so this is a note and no fault.
    """

    episodes: int = 0
    turns: int = 0
    tokens: int = 0
    sampled: int = 0
    without_logprob: int = 0
    extended: int = 0
    forks: int = 0
    compared: int = 0
    difference_sum: float = 0.0
    difference_max: float = 0.0
    rewrites_history: str = ""

    def __iadd__(self, other: "Ledger") -> "Ledger":
        for name in ("episodes", "turns", "tokens", "sampled", "without_logprob", "extended", "forks", "compared"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.difference_sum += other.difference_sum
        self.difference_max = max(self.difference_max, other.difference_max)
        self.rewrites_history = self.rewrites_history or other.rewrites_history
        return self

    @property
    def difference_mean(self) -> float | None:
        """The mean distance between sampler and trainer in nats; None when nothing was compared."""
        return self.difference_sum / self.compared if self.compared else None

    @property
    def ok(self) -> bool:
        """No fork, no sampled token without its log-probability, and sampler and trainer (where compared) agree."""
        return not self._faults()

    def prompted(self, seen: Sequence[int], prompt: Sequence[int]) -> None:
        """Count one later prompt of an episode: `seen` is the earlier prompt plus what was sampled after it."""
        if len(prompt) >= len(seen) and list(prompt[: len(seen)]) == list(seen):
            self.extended += 1
        else:
            self.forks += 1

    def observe(self, transcript: Transcript) -> None:
        """Count a finished transcript.

        Raises:
            TranscriptError: Its lists are not of one length.
        """
        lengths = {len(transcript.ids), len(transcript.mask), len(transcript.logprobs), len(transcript.turn)}
        if len(lengths) != 1:
            raise TranscriptError(f"ids, mask, logprobs and turn must have one length, got {sorted(lengths)}")
        self.episodes += 1
        self.turns += transcript.turns
        self.tokens += len(transcript)
        self.sampled += transcript.sampled
        self.without_logprob += sum(
            was_sampled and logprob is None
            for was_sampled, logprob in zip(transcript.mask, transcript.logprobs, strict=True)
        )

    def compare(self, sampler: Sequence[float], trainer: Sequence[float]) -> None:
        """Count the log-probabilities of the same tokens by sampler and trainer, with the same weights.

        Raises:
            TranscriptError: There is not one of each per token.
        """
        if len(sampler) != len(trainer):
            raise TranscriptError(f"{len(sampler)} log-probabilities of the sampler, {len(trainer)} of the trainer")
        distances = [abs(one - other) for one, other in zip(sampler, trainer, strict=True)]
        # A distance that is not a number must not be lost in max(), which keeps its first argument then.
        distances = [distance if distance == distance else float("inf") for distance in distances]  # noqa: PLR0124  # NaN
        self.compared += len(distances)
        self.difference_sum += sum(distances)
        self.difference_max = max([self.difference_max, *distances])

    def verdict(self) -> str:
        """One sentence for the end of a run."""
        faults = self._faults()
        if faults:
            return f"not clean: {'; '.join(faults)}"
        if not self.sampled:
            return "no tokens were sampled"
        agreement = "sampler and trainer were not compared"
        if self.difference_mean is not None:
            agreement = (
                f"sampler and trainer differ by {self.difference_mean:.1e} nats on average and "
                f"{self.difference_max:.1e} at most over {self.compared:,} tokens"
            )
        return (
            f"clean: every later prompt ({self.extended:,}) extended what was seen and sampled before, all "
            f"{self.sampled:,} sampled tokens have their log-probability, {agreement}"
        )

    def as_dict(self) -> dict[str, object]:
        """The counts, `difference_mean`, `ok` and `verdict`, for JSON."""
        values: dict[str, object] = asdict(self)
        values["difference_max"] = _finite(self.difference_max)
        values["difference_sum"] = _finite(self.difference_sum)
        mean = self.difference_mean
        return {
            **values,
            "difference_mean": None if mean is None else _finite(mean),
            "ok": self.ok,
            "verdict": self.verdict(),
        }

    def _faults(self) -> list[str]:
        faults = []
        if self.forks:
            prompts = self.forks + self.extended
            faults.append(f"{self.forks:,} of {prompts:,} later prompts did not extend what was seen before them")
        if self.without_logprob:
            faults.append(f"{self.without_logprob:,} of {self.sampled:,} sampled tokens have no log-probability")
        mean = self.difference_mean
        if mean is not None and not (mean <= MEAN_DIFFERENCE_NATS and self.difference_max <= MAX_DIFFERENCE_NATS):
            faults.append(
                f"sampler and trainer differ by {mean:.1e} nats on average and {self.difference_max:.1e} at most over "
                f"{self.compared:,} tokens (up to {MEAN_DIFFERENCE_NATS:g} and {MAX_DIFFERENCE_NATS:g} pass)"
            )
        return faults


def _finite(value: float) -> float | str:
    return value if abs(value) != float("inf") else str(value)
