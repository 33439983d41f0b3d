"""Which evaluation was the best: the highest figure, or the lowest loss; of equal ones the earlier."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

LOWER_IS_BETTER = frozenset({"loss"})
"""The metrics of evaluations of which the lowest is the best."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best evaluation.

    Attributes:
        step: The steps that were done then.
        phase: Its name.
        metric: What was measured.
        value: What came out.
    """

    step: int
    phase: str
    metric: str
    value: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def best_of(evaluations: Mapping[str, Mapping[str, Any]], steps: Collection[int]) -> Best | None:
    """Return the best of the evaluations after one of these steps; None when there is none.

    The evaluation before the first step does not count: its weights are the untrained model's.
    """
    found = [
        Best(result["step"], phase, result["metric"], result["mean"])
        for phase, result in evaluations.items()
        if result["step"] in steps and result["step"] > 0 and result["mean"] is not None
    ]
    return min(found, key=_rank, default=None)


def _rank(best: Best) -> tuple[float, int]:
    return (best.value if best.metric in LOWER_IS_BETTER else -best.value), best.step
