"""The curves of a run: which figures of its steps are shown, in which order, and what they are called."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiltyard.report.loggers import flat

MAX_POINTS = 4000
"""A longer run shows so many of its steps in a curve, evenly spaced; its ends are always there."""

_MAIN = (
    ("reward", "Reward", "mean of the episodes that have one"),
    ("success", "Success", "share of the episodes that did not fail"),
    ("valid", "Valid", "share of what the environment called valid"),
    ("token_accuracy", "Tokens right", "share of the trained tokens that the model finds most likely"),
    ("accuracy", "Pairs right", "share of the pairs whose chosen answer is ahead"),
    ("margin", "Margin", "reward of the chosen answer minus the other's"),
    ("chosen_reward", "Reward of the chosen", "log-probability ratio to the reference, times beta"),
    ("rejected_reward", "Reward of the rejected", "log-probability ratio to the reference, times beta"),
    ("turns", "Length in turns", "mean of an episode"),
    ("tokens_per_episode", "Length in tokens", "sampled tokens of an episode, mean"),
    ("failed_share", "Failed", "share of the episodes that have no score"),
    ("truncated_share", "Truncated", "share of the episodes that were cut"),
    ("entropy", "Entropy", "nats a token"),
    ("kl", "KL from the untrained model", "nats a token"),
    ("policy_kl", "KL of the update", "nats a token, new weights from those that sampled"),
    ("loss", "Loss", "of the update"),
    ("grad_norm", "Gradient norm", "before clipping"),
    ("clip_fraction", "Clipped", "share of the tokens whose ratio a bound held"),
    ("learning_rate", "Learning rate", ""),
    ("tokens_per_s", "Tokens a second", "of the rollout, or of the rows"),
)
_NO_CURVE = {"step", "attempt"}


@dataclass(frozen=True, slots=True)
class Curve:
    """One figure over the steps; None where a step does not have it.

    Attributes:
        name: As in `metrics.jsonl`, with a slash between nested names.
        title: What a reader sees.
        note: What it is, in a few words.
        main: Shown at once; the others wait to be asked for.
        values: One for each of the steps.
    """

    name: str
    title: str
    note: str
    main: bool
    values: tuple[float | None, ...]


def chosen_steps(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the steps that the curves show: all, or `MAX_POINTS` of them."""
    if len(steps) <= MAX_POINTS:
        return list(steps)
    last = len(steps) - 1
    return [steps[round(number * last / (MAX_POINTS - 1))] for number in range(MAX_POINTS)]


def curves(steps: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Return every figure that some step has, those that a reader wants first at the front."""
    figures = [{**dict(flat(step, "")), **_derived(step)} for step in steps]
    by_name = [{name.lstrip("/"): value for name, value in found.items()} for found in figures]
    names = dict.fromkeys(name for found in by_name for name in found if name not in _NO_CURVE)
    main = {name: (title, note) for name, title, note in _MAIN}
    parts = [name for name in names if name.startswith("reward_parts/")]
    first = [name for name in ("reward", "success", "valid") if name in names]
    order = [*first, *parts, *(name for name in main if name in names and name not in first)]
    return [
        *(_curve(name, *main.get(name, _part_title(name)), main=True, figures=by_name) for name in order),
        *(_curve(name, name, "", main=False, figures=by_name) for name in sorted(names.keys() - set(order))),
    ]


def _curve(name: str, title: str, note: str, *, main: bool, figures: Iterable[Mapping[str, float]]) -> Curve:
    return Curve(name, title, note, main, tuple(rounded(found.get(name)) for found in figures))


def _part_title(name: str) -> tuple[str, str]:
    return f"Reward, {name.partition('/')[2]}", "one part of the reward"


def _derived(step: Mapping[str, Any]) -> dict[str, float]:
    """Counts of a step as shares of its episodes: steps differ in how many they have."""
    episodes = step.get("episodes")
    if not isinstance(episodes, int) or not episodes:
        return {}
    shares = {"failed_share": "failed", "truncated_share": "truncated", "tokens_per_episode": "sampled_tokens"}
    return {
        f"/{name}": step[count] / episodes for name, count in shares.items() if isinstance(step.get(count), int | float)
    }


def rounded(value: float | None) -> float | None:
    """Six digits are more than a picture shows."""
    return None if value is None else float(f"{value:.6g}")
