"""What a run's report says first: how far it came, and the handful of figures that it is judged by."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tiltyard.report.episodes import Episodes
from tiltyard.report.reading import RunRecord
from tiltyard.report.scores import score_figures
from tiltyard.report.summary import duration, endings_text, learned_nothing
from tiltyard.train.writer import Writing

Tone = Literal["", "good", "bad"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure of the head: its name, itself, what stands below it, and whether it is good news."""

    label: str
    value: str
    note: str
    tone: Tone = ""


def state_text(run: RunRecord) -> str:
    """Say how far the run came."""
    summary = run.summary
    if not summary:
        return _without_summary(run)
    took = duration(summary.get("seconds") or 0)
    if "steps" in summary:
        done = f"{summary['steps_done']:,} of {summary['steps']:,} steps in {took}"
    else:
        done = f"{summary.get('episodes', 0):,} of {summary.get('planned', 0):,} episodes in {took}"
    if not run.ended:
        return f"resumed, and {_without_summary(run)}; before, {done}"
    if summary.get("interrupted"):
        return f"interrupted after {done}"
    if "optimiser_steps" in summary and learned_nothing(summary):
        return f"nothing was learned in {done}: no weight changed"
    return f"finished {done}"


def _without_summary(run: RunRecord) -> str:
    process = run.writer.process or "another process"
    return {
        Writing.GOES_ON: f"not ended: {process} goes on with it",
        Writing.GONE: f"killed: {process} is gone; --resume goes on with the run",
        Writing.NOBODY: "broken off by an error; --resume goes on with the run",
        Writing.UNKNOWN: f"not ended: {process} goes on with it, or was killed",
    }[run.writer.writing]


def facts(run: RunRecord, episodes: Episodes) -> list[Fact]:
    """Return the figures of the head, the most telling first."""
    return [*_scores(run), *_last_step(run), *_played(run, episodes), *_rows(run), *_tokens(run)]


def _scores(run: RunRecord) -> Iterator[Fact]:
    """The figure that the run is judged by: at the end, against the start."""
    figures = score_figures(run.evaluations)
    if not figures:
        return
    figure = figures[0]
    first, last = figure["rows"][0], figure["rows"][-1]
    value = f"{last['mean']:.3f}"
    notes = [f"95 % interval {last['low']:.3f} to {last['high']:.3f}"] if last["low"] is not None else []
    tone: Tone = ""
    if first is not last:
        value = f"{first['mean']:.3f} → {value}"
        tone, words = _change(first, last, lower_is_better=figure["name"] == "loss")
        notes = [words]
    yield Fact(f"{figure['title']}, held out", value, "; ".join([*notes, f"n\u00a0=\u00a0{last['n']:,}"]), tone)


def _change(first: Mapping[str, Any], last: Mapping[str, Any], *, lower_is_better: bool) -> tuple[Tone, str]:
    if any(row[end] is None for row in (first, last) for end in ("low", "high")):
        return "", "too few to tell"
    if first["low"] <= last["high"] and last["low"] <= first["high"]:
        return "", "the 95 % intervals overlap: this can be chance"
    better = (last["mean"] > first["mean"]) != lower_is_better
    return ("good", "better: the 95 % intervals are apart") if better else ("bad", "worse: the intervals are apart")


def _last_step(run: RunRecord) -> Iterator[Fact]:
    if not run.steps:
        return
    last, planned = run.steps[-1], (run.config.get("training") or {}).get("steps")
    named = [(name, last.get(name)) for name in ("reward", "loss")]
    shown = [f"{name} {round(value, 3) + 0.0:.3f}" for name, value in named if isinstance(value, int | float)]
    yield Fact("Steps", f"{last['step']:,}" + (f" of {planned:,}" if planned else ""), f"the last: {', '.join(shown)}")


def _played(run: RunRecord, episodes: Episodes) -> Iterator[Fact]:
    if not episodes.count:
        return
    failed = run.summary.get("failed") or 0
    note = endings_text(episodes.endings)
    yield Fact("Episodes", f"{episodes.count:,}", note, "bad" if failed else "")


def _rows(run: RunRecord) -> Iterator[Fact]:
    dataset = run.summary.get("dataset")
    if isinstance(dataset, Mapping):
        counts = {part: dataset.get(part) or {} for part in ("train", "held_out")}
        used = {part: f"{found.get('used', 0):,} of {found.get('rows', 0):,}" for part, found in counts.items()}
        yield Fact("Rows", used["train"], f"held out: {used['held_out']}")


def _tokens(run: RunRecord) -> Iterator[Fact]:
    ledger = run.summary.get("ledger")
    if isinstance(ledger, Mapping) and ledger.get("sampled"):
        ok = bool(ledger.get("ok"))
        note = "each kept as it was sampled" if ok else str(ledger.get("verdict", ""))
        yield Fact("Sampled tokens", f"{ledger['sampled']:,}", note, "" if ok else "bad")
    if run.summary.get("leaked"):
        yield Fact("Leaked", f"{run.summary['leaked']:,}", "environments that could not be closed", "bad")
