"""The evaluations of a run as the report shows them: each figure with its interval, one below the other."""

from collections.abc import Iterator, Mapping
from typing import Any

_TITLES = {
    "success": "Success",
    "reward": "Reward",
    "valid": "Valid",
    "accuracy": "Pairs right",
    "token_accuracy": "Tokens right",
    "loss": "Loss",
    "margin": "Margin",
}


def score_figures(evaluations: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the figures of evaluations by phase, that which the run is judged by first.

    Each has `name`, `title`, `share` (it lies between 0 and 1) and `rows`: `phase`, `step`, `mean`, `low`, `high`, `n`.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for phase, score in evaluations.items():
        for name, figure in _figures(score):
            row = {key: figure.get(key) for key in ("mean", "low", "high", "n")}
            found.setdefault(name, []).append({"phase": phase, "step": score.get("step"), **row})
    return [
        {
            "name": name,
            "title": _TITLES.get(name, name.replace("_", " ")),
            "share": name in ("success", "valid", "accuracy", "token_accuracy") or name.startswith("pass@"),
            "rows": rows,
        }
        for name, rows in found.items()
    ]


def _figures(score: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    metric = str(score.get("metric"))
    named = {metric: score, **{name: found for name, found in score.items() if name in _TITLES}}
    samples = score.get("samples")
    if isinstance(samples, Mapping):
        # The mean over k episodes of each task is the figure again, with an interval that knows they are of one task.
        named.pop("success", None)
        named = {f"pass@{at}": found for at, found in samples.get("pass_at", {}).items()} | named
    for name, figure in named.items():
        if isinstance(figure, Mapping) and figure.get("mean") is not None:
            yield name, figure
