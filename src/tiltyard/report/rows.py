"""The words of a run over rows: one line a step, one an evaluation, and what came of it."""

from collections.abc import Iterator, Mapping
from typing import Any


def is_of_rows(figures: Mapping[str, Any]) -> bool:
    """Whether a step's line or a summary is that of a run over rows."""
    return figures.get("objective") is not None


def row_step_parts(metrics: Mapping[str, Any]) -> list[str]:
    """The figures of one step, in words."""
    parts = [f"loss {metrics['loss']:.4f}"]
    if "token_accuracy" in metrics:
        parts.append(f"tokens right {metrics['token_accuracy']:.3f}")
    else:
        parts += [f"pairs right {metrics['accuracy']:.3f}", f"margin {metrics['margin']:.3f}"]
    if metrics["tokens_per_s"] is not None:
        parts.append(f"{metrics['tokens_per_s']:.0f} tokens/s")
    return parts


def row_score_text(score: Mapping[str, Any]) -> str:
    """One evaluation in a line, each figure with its interval."""
    if "token_accuracy" in score:
        return f"loss {_interval(score)}, tokens right {_interval(score['token_accuracy'])}"
    return f"pairs right {_interval(score)}, loss {_interval(score['loss'])}, margin {_interval(score['margin'])}"


def row_summary_text(summary: Mapping[str, Any], took: str) -> str:
    """What came of the run, in a few lines; `took` is its time in words."""
    done = f"{summary['steps_done']} of {summary['steps']} steps in {took}"
    lines = [f"interrupted after {done}" if summary["interrupted"] else f"finished {done}"]
    before, after = summary["eval_before"], summary["eval_after"]
    lines += [f"before     {row_score_text(before)}"] if before else []
    lines += [f"after      {row_score_text(after)}"] if after else []
    if before and after:
        lines.append(f"change     {after['mean'] - before['mean']:+.3f} on held-out rows: {_comparison(before, after)}")
    lines += _rows(summary["dataset"])
    lines.append(f"folder     {summary['folder']}")
    return "\n".join(lines)


def _comparison(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    if any(each[end] is None for each in (before, after) for end in ("low", "high")):
        return "too few rows to tell"
    above, below = after["low"] > before["high"], after["high"] < before["low"]
    if not above and not below:
        return "the 95 % intervals overlap, so this can be chance"
    better = below if before["metric"] == "loss" else above
    return f"{'better' if better else 'worse'}, the 95 % intervals are apart"


def _rows(dataset: Mapping[str, Any]) -> Iterator[str]:
    for part in ("train", "held_out"):
        counts = dataset[part]
        left_out = "".join(f", {count} {reason.replace('_', ' ')}" for reason, count in counts["dropped"].items())
        cut = f", {counts['cut']} cut" if counts["cut"] else ""
        name = "rows" if part == "train" else ""
        yield f"{name:10} {part.replace('_', '-')}: {counts['used']} of {counts['rows']} used{left_out}{cut}"


def _interval(figure: Mapping[str, Any]) -> str:
    if figure["mean"] is None:
        return "none"
    if figure["low"] is None:
        return f"{figure['mean']:.3f} (n={figure['n']})"
    return f"{figure['mean']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}] (n={figure['n']})"
