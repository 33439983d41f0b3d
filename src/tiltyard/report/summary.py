"""The closing words of a run: what improved, what failed, and whether the tokens can be trusted."""

from collections.abc import Iterator, Mapping
from typing import Any

from tiltyard.report.rows import is_of_rows, row_score_text, row_summary_text
from tiltyard.rollout.outcome import Ending


def summary_text(summary: Mapping[str, Any]) -> str:
    """Say in a few lines what `summary.json` holds."""
    if is_of_rows(summary):
        return row_summary_text(summary, duration(summary["seconds"]))
    lines = [f"{_headline(summary)}"]
    lines += _improvement(summary)
    lines.append(
        f"episodes   {summary['episodes']} played, {summary['failed']} failed, {summary['truncated']} truncated"
        f" ({endings_text(summary['endings'])})"
    )
    lines += failure_lines(summary["endings"], summary["errors"])
    lines.append(f"tokens     {summary['ledger']['verdict']}")
    lines.append(f"leases     leaked={summary['leaked']}")
    lines.append(f"folder     {summary['folder']}")
    return "\n".join(lines)


def score_text(score: Mapping[str, Any]) -> str:
    """Say one evaluation in a line: the figure with its interval, and what was left out of it."""
    if "rows" in score:
        return row_score_text(score)
    parts = [f"{score['metric']} {_interval(score)}"]
    if score["metric"] != "reward":
        parts.append(f"reward {_number(score['reward']['mean'])}")
    if score["valid"] is not None:
        parts.append(f"valid {_number(score['valid']['mean'])}")
    if score["turns"] is not None:
        parts.append(f"turns {score['turns']:.1f}")
    if score["turns_to_success"] is not None:
        parts.append(f"turns to success {score['turns_to_success']:.1f}")
    parts += [f"{score[name]} {name}, not counted" for name in _not_counted(score) if score[name]]
    return ", ".join(parts)


def _not_counted(score: Mapping[str, Any]) -> tuple[str, ...]:
    """What the figure leaves out: an unscored episode is one without success, and has no reward to average."""
    return ("failed",) if score["metric"] == "success" else ("failed", "unscored")


def _headline(summary: Mapping[str, Any]) -> str:
    done = f"{summary['steps_done']} of {summary['steps']} steps in {duration(summary['seconds'])}"
    if summary["interrupted"]:
        return f"interrupted after {done}"
    if learned_nothing(summary):
        return f"NOTHING WAS LEARNED in {done}: no two scored episodes of a group differed, so no weight changed"
    return f"finished {done}"


def learned_nothing(summary: Mapping[str, Any]) -> bool:
    """True when steps were played and none of them changed the weights."""
    return summary["steps_done"] > 0 and summary["optimiser_steps"] == 0


def _improvement(summary: Mapping[str, Any]) -> list[str]:
    before, after = summary["eval_before"], summary["eval_after"]
    lines = []
    if before:
        lines.append(f"before     {score_text(before)}")
    if after:
        lines.append(f"after      {score_text(after)}")
    comparable = before and after and before["metric"] == after["metric"]
    if comparable and before["mean"] is not None and after["mean"] is not None:
        change = after["mean"] - before["mean"]
        lines.append(f"change     {change:+.3f} on held-out tasks: {_comparison(before, after)}")
    return lines


def _comparison(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    ends = (before["low"], before["high"], after["low"], after["high"])
    if any(end is None for end in ends):
        return "too few episodes to tell"
    if after["low"] > before["high"]:
        return "better, the 95 % intervals are apart"
    if after["high"] < before["low"]:
        return "worse, the 95 % intervals are apart"
    return "the 95 % intervals overlap, so this can be chance"


def failure_lines(endings: Mapping[str, int], errors: Mapping[str, str | None]) -> Iterator[str]:
    """Say what each ending means that has no score, and one error that led to it."""
    for name in endings:
        if Ending(name).failed:
            yield f"           {name}: {Ending(name).fate.meaning}"
            yield f"           such as: {_first_line(errors.get(name))}"


def _first_line(text: str | None, limit: int = 200) -> str:
    line = printable((text or "no reason was given").splitlines()[0])
    return line if len(line) <= limit else line[:limit] + "…"


def printable(text: str) -> str:
    """The text without control characters: a model or an environment may say those that move the cursor."""
    return "".join(char if char.isprintable() else " " for char in text)


def endings_text(endings: Mapping[str, int]) -> str:
    """Say how many ended how."""
    return ", ".join(f"{count} {ending}" for ending, count in endings.items()) or "none"


def _interval(score: Mapping[str, Any]) -> str:
    if score["mean"] is None:
        return "none"
    if score["low"] is None:
        return f"{score['mean']:.3f} (n={score['n']})"
    return f"{score['mean']:.3f} [{score['low']:.3f}, {score['high']:.3f}] (n={score['n']})"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def duration(seconds: float) -> str:
    """Say how long something took."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
