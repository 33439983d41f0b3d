"""A run in the terminal as it goes: how far it is, its last steps, its curves, and its last episodes."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tiltyard.report.curves import curves
from tiltyard.report.headline import state_text
from tiltyard.report.reading import RunRecord, parsed, read_run
from tiltyard.report.summary import duration, printable, score_text

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

# A command that shows nothing in colours does not wait for rich.
# ruff: noqa: PLC0415

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 40
"""Characters of a curve; a longer run shows means of neighbouring steps."""

LAST_STEPS, LAST_EPISODES = 6, 6
TAIL_BYTES = 1 << 20
"""How much of the end of `trajectories.jsonl` is read to begin with."""

_CURVES = ("reward", "success", "loss", "token_accuracy", "accuracy", "margin", "entropy", "kl", "policy_kl", "turns")


class Tail:
    """The end of a file of JSON lines that another process appends to."""

    def __init__(self, file: Path, keep: int) -> None:
        self._file = file
        self._at: int | None = None
        self._kept: deque[dict[str, Any]] = deque(maxlen=keep)

    def read(self) -> list[dict[str, Any]]:
        """Read what was finished since the last time; returns the last records, oldest first."""
        if not self._file.is_file():
            return []
        with self._file.open("rb") as lines:
            size = lines.seek(0, 2)
            if self._at is None or self._at > size:
                self._kept.clear()
                self._at = max(0, size - TAIL_BYTES)
                lines.seek(self._at)
                if self._at:
                    self._at += len(lines.readline())
            lines.seek(self._at)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                self._at += len(line)
                record = parsed(line)
                if "episode_id" in record:
                    self._kept.append(record)
        return list(self._kept)


def watch(run: str | Path, stream: TextIO, *, every_s: float = 1.0) -> None:
    """Show the run until it has ended, or its process has; where there is no terminal, once as it stands.

    Args:
        run: The folder of a run, an evaluation or a rollout.
        stream: Where to.
        every_s: Seconds between two looks at the folder.

    Raises:
        ConfigurationError: The folder is that of no run.
    """
    from rich.console import Console
    from rich.live import Live

    record = read_run(run)
    episodes = Tail(record.path / "trajectories.jsonl", LAST_EPISODES)
    console = Console(file=stream, width=None if stream.isatty() else 120)
    if not stream.isatty():
        console.print(view(record, episodes.read(), changed_s(record.path)))
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(view(record, episodes.read(), changed_s(record.path)), refresh=True)
            if record.over:
                return
            time.sleep(every_s)
            record = read_run(run)


def view(record: RunRecord, episodes: Sequence[Mapping[str, Any]], changed_ago_s: float) -> "Group":
    """Draw the run as it stands; `changed_ago_s` is how long ago its files changed."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [Text.assemble((record.name, "bold"), "  ", _state(record, changed_ago_s))]
    if (bar := _progress(record)) is not None:
        parts.append(bar)
    # Text, never markup: a path, a task or an answer may hold square brackets.
    parts += [Text(f"{phase}: {score_text(score)}", "cyan") for phase, score in record.evaluations.items()]
    if record.steps:
        parts += [Text(), _curves(record), Text(), _steps(record.steps[-LAST_STEPS:])]
    if episodes:
        parts += [Text(), _episodes(episodes)]
    return Group(*parts)


def sparkline(values: Sequence[float | None], width: int = WIDTH) -> str:
    """Draw values in one line of `width` characters at most; where there is none, a space."""
    if len(values) > width:
        cuts = [number * len(values) // width for number in range(width + 1)]
        values = [_mean(values[start:end]) for start, end in pairwise(cuts)]
    known = [value for value in values if value is not None]
    if not known:
        return " " * len(values)
    low, reach = min(known), max(known) - min(known)
    height = len(BARS) - 1
    return "".join(
        " " if value is None else BARS[round((value - low) / reach * height) if reach else 0] for value in values
    )


def changed_s(path: Path) -> float:
    """How many seconds ago something was written into the run's files."""
    times = [file.stat().st_mtime for file in path.glob("*.json*") if file.is_file()]
    return max(0.0, time.time() - max(times)) if times else 0.0


def _state(record: RunRecord, changed_ago_s: float) -> "Text":
    from rich.text import Text

    if record.ended:
        return Text(state_text(record), "green" if not record.summary.get("interrupted") else "yellow")
    if record.over:
        return Text(state_text(record), "red")
    return Text(f"last written {duration(changed_ago_s)} ago", "yellow" if changed_ago_s > 60 else "dim")


def _progress(record: RunRecord) -> "Table | None":
    """A bar over the steps; where the run plays episodes without steps there is none."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    planned = (record.config.get("training") or {}).get("steps")
    if not isinstance(planned, int) or "request" in record.state:
        return None
    done = record.steps[-1]["step"] if record.steps else 0
    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=max(planned, 1), completed=done, width=WIDTH), f"step {done} of {planned}")
    return grid


def _curves(record: RunRecord) -> "Table":
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    found = {curve.name: curve.values for curve in curves(record.steps)}
    for name in _CURVES:
        values = found.get(name)
        if values is None or all(value is None for value in values):
            continue
        known = [value for value in values if value is not None]
        grid.add_row(name, sparkline(values), f"{known[0]:.3f} → {known[-1]:.3f}")
    return grid


def _steps(steps: Sequence[Mapping[str, Any]]) -> "Table":
    names = ("reward", "success", "loss", "entropy", "kl", "failed", "truncated", "tokens_per_s")
    shown = [name for name in names if any(isinstance(step.get(name), int | float) for step in steps)]
    table = _table("step", *shown, "seconds")
    for step in steps:
        seconds = (step.get("seconds") or {}).get("step")
        figures = [*(step.get(name) for name in shown), seconds]
        table.add_row(str(step["step"]), *(_number(figure) for figure in figures))
    return table


def _episodes(episodes: Sequence[Mapping[str, Any]]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table: Table = _table("episode", "phase", "reward", "turns", "ending")
    table.add_column("last words", overflow="ellipsis", no_wrap=True, max_width=60)
    for record in episodes:
        said = record.get("error") or next(
            (m.get("content") for m in reversed(record.get("messages") or ()) if m.get("role") == "assistant"), ""
        )
        ending = Text(str(record.get("ending")), "red" if record.get("failed") else "")
        cells = (Text(_line(str(record["episode_id"]))), Text(_line(str(record.get("phase") or ""))))
        figures = (_number(record.get("reward")), str(record.get("turns")))
        table.add_row(*cells, *figures, ending, Text(_line(str(said or ""))))
    return table


def _table(*names: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, justify="left" if name in ("episode", "phase", "ending") else "right", no_wrap=True)
    return table


def _line(text: str) -> str:
    return printable(text[:200]).strip()


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _number(value: Any) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
