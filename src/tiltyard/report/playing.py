"""Episodes that are played and not learned from: their progress in the terminal, and the words at their end."""

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from tiltyard.report.summary import duration, endings_text, failure_lines, score_text
from tiltyard.train.episodes import EpisodeObserver, Progress

PLAIN_LINES = 20
"""Lines of the progress of one attempt where there is no terminal, at most."""


def episode_observer(stream: TextIO | None = None) -> EpisodeObserver:
    """Return the observer that fits the stream (standard error by default)."""
    target: TextIO = sys.stderr if stream is None else stream
    return LiveEpisodes(target) if target.isatty() else PlainEpisodes(target)


class PlainEpisodes:
    """A line now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pace = _Pace()

    def started(self, folder: Path, progress: Progress) -> None:
        """Say where it is kept, and what is left to do."""
        self._pace.start()
        self._say(started_text(folder, progress))

    def episode_finished(self, progress: Progress) -> None:
        """Say how far it is, each time another twentieth is done."""
        every = -(-progress.to_play // PLAIN_LINES)
        if progress.played % every == 0 or progress.played == progress.to_play:
            self._say(self._pace.text(progress))

    def ended(self) -> None:
        """Nothing is left open."""

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class LiveEpisodes:
    """A bar that moves with the episodes, and beside it what failed, how fast it is, and how long it will take."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console  # noqa: PLC0415  # a run without a terminal does not pay for rich
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415  # as above

        # Markup is off: an ending or a path may hold square brackets.
        columns = (BarColumn(), TextColumn("{task.fields[detail]}", markup=False))
        self._bar = Progress(*columns, console=Console(file=stream), transient=True)
        self._task = self._bar.add_task("episodes", total=None, detail="")
        self._pace = _Pace()

    def started(self, folder: Path, progress: Progress) -> None:
        """Show the bar."""
        self._pace.start()
        self._bar.start()
        self._bar.console.print(started_text(folder, progress), markup=False, highlight=False, soft_wrap=True)
        self._move(progress)

    def episode_finished(self, progress: Progress) -> None:
        """Move the bar."""
        self._move(progress)

    def ended(self) -> None:
        """Take the bar away."""
        self._bar.stop()

    def _move(self, progress: Progress) -> None:
        before = progress.planned - progress.to_play
        self._bar.update(
            self._task,
            total=progress.planned,
            completed=before + progress.played,
            detail=self._pace.text(progress),
        )


def started_text(folder: Path, progress: Progress) -> str:
    """Say where it is kept, and what an earlier attempt left to do."""
    if progress.to_play == progress.planned and not progress.failed:
        return f"run folder {folder}: {progress.planned} episodes"
    failed = sum(progress.failed.values())
    missing = progress.to_play - failed
    kinds = [f"{failed} failed" if failed else "", f"{missing} missing" if missing else ""]
    left = f" ({', '.join(filter(None, kinds))})" if progress.to_play else ""
    before = f"{progress.finished} of {progress.planned} finished before"
    return f"run folder {folder}: {before}, {progress.to_play} to play{left}"


def progress_text(progress: Progress) -> str:
    """Say how far it is, and what has failed so far and why."""
    text = f"{progress.finished}/{progress.planned} done"
    if progress.failed:
        text += f"  {sum(progress.failed.values())} failed ({endings_text(progress.failed)})"
    return text


class _Pace:
    """Knows how fast this attempt is."""

    def __init__(self) -> None:
        self._began = 0.0

    def start(self) -> None:
        self._began = time.monotonic()

    def text(self, progress: Progress) -> str:
        parts, elapsed = [progress_text(progress)], time.monotonic() - self._began
        if progress.tokens and elapsed > 0:
            parts.append(f"{progress.tokens / elapsed:,.0f} tokens/s")
        left = progress.to_play - progress.played
        if progress.played and left:
            seconds = round(elapsed / progress.played * left)
            parts.append(f"{seconds // 60}:{seconds % 60:02d} left")
        return "  ".join(parts)


def episodes_text(summary: Mapping[str, Any]) -> str:
    """Say in a few lines, and a table, what `summary.json` holds."""
    found = summary["evaluations"][summary["phase"]]
    done = f"{summary['episodes'] - summary['failed']} of {summary['planned']} episodes"
    word = "interrupted after" if summary["interrupted"] else "finished"
    lines = [f"{word} {done} in {duration(summary['seconds'])}", f"{summary['phase']:<11}{score_text(found)}"]
    lines += table(found["samples"])
    lines.append(
        f"episodes   {summary['episodes']} played, {summary['failed']} failed, {summary['truncated']} truncated"
        f" ({endings_text(summary['endings'])})"
    )
    lines += failure_lines(summary["endings"], summary["errors"])
    lines.append(f"tokens     {_tokens(summary)}")
    lines.append(f"leases     leaked={summary['leaked']}")
    lines.append(f"folder     {summary['folder']}")
    return "\n".join(lines)


def table(samples: Mapping[str, Any]) -> Iterator[str]:
    """Give the lines of the figures over tasks, each with its interval."""
    k = samples["samples"]
    rows = [("reward", samples["reward"])] if samples["success"] is None else [(f"avg@{k}", samples["success"])]
    rows += [(f"pass@{at}", found) for at, found in samples["pass_at"].items()]
    yield f"           {'':<10}{'mean':>6}   {'95 % interval':<16}{'tasks':>5}"
    for name, found in rows:
        yield f"           {name:<10}{_number(found['mean']):>6}   {_ends(found):<16}{found['n']:>5}"
    method = samples["intervals"]["reward" if samples["success"] is None else "success"]
    yield f"           {samples['tasks']} tasks, {k} episodes each; intervals: {method}"
    if samples["success"] is None:
        yield "           no pass@k: neither info['success'] nor environment.max_reward says what success is"
    for at, count in samples["left_out"].items():
        yield f"           pass@{at} leaves out {count} tasks with fewer than {at} episodes that did not fail"


def _tokens(summary: Mapping[str, Any]) -> str:
    ledger = summary["ledger"]
    parts = []
    if summary["sampled_tokens"]:
        parts.append(f"{summary['sampled_tokens']:,} sampled, {summary['tokens_per_s']:,.0f} tokens/s")
    if ledger["sampled"]:
        parts.append(ledger["verdict"])
    if summary["untrainable"]:
        asked = summary["server"] and summary["server"]["token_ids"]
        why = summary["untrainable"] if asked else "--token-ids asks a vLLM or llama.cpp server for their ids"
        parts.append(f"not to be trained on: {why}")
    return "; ".join(parts) or "none were sampled"


def _ends(found: Mapping[str, Any]) -> str:
    return "none" if found["low"] is None else f"[{found['low']:.3f}, {found['high']:.3f}]"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
