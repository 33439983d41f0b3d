"""Writes the report of a run: one HTML file that holds everything it shows, and opens from the disk."""

import base64
import gzip
import hashlib
import html
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from tiltyard._boundary import guarded
from tiltyard.errors import ConfigurationError, ReportError, TiltyardError
from tiltyard.report.curves import chosen_steps, curves
from tiltyard.report.episodes import Episode, Episodes, read_episodes
from tiltyard.report.headline import facts, state_text
from tiltyard.report.reading import RunRecord, flat_config, read_run
from tiltyard.report.scores import score_figures
from tiltyard.report.token_texts import token_texts
from tiltyard.rollout.outcome import ENDINGS, Ending

NAME = "report.html"
"""What the report of a run is called in its folder."""

PAGES_TOGETHER = 50
"""Episode pages that are packed together: one is shown after unpacking so many."""

_SCRIPTS = (
    "vendor/uPlot.iife.min.js",
    "vendor/tabulator.min.js",
    "assets/base.js",
    "assets/data.js",
    "assets/charts.js",
    "assets/scores.js",
    "assets/table.js",
    "assets/episode.js",
    "assets/page.js",
)
_STYLES = ("vendor/uPlot.min.css", "vendor/tabulator_simple.min.css", "assets/report.css")


def write_report(
    run: str | os.PathLike[str], other: str | os.PathLike[str] | None = None, out: str | os.PathLike[str] | None = None
) -> Path:
    """Write the report of a run, or of two side by side; returns the file's path.

    Args:
        run: The folder of a run, an evaluation or a rollout; it may still go on.
        other: A second one to compare it with.
        out: The file to write; None is `report.html` in the run's folder, and `report-vs-OTHER.html` for two.

    Raises:
        ConfigurationError: There is no run in a folder, or the file cannot be written.
    """
    records = [read_run(run)] if other is None else [read_run(run), read_run(other)]
    if out is None:
        file = records[0].path / (NAME if other is None else f"report-vs-{records[1].name}.html")
    else:
        file = Path(out)
    beside = file.with_name(f"{file.name}.tmp")
    try:
        with beside.open("w", encoding="utf-8", errors="xmlcharrefreplace", newline="\n") as page:
            page.writelines(_page(records))
        os.replace(beside, file)
    except OSError as error:
        raise ConfigurationError(f"the report {file} cannot be written: {error.strerror}; give --out FILE") from error
    finally:
        with suppress(OSError):  # it is there only where something went wrong, and that is what is told
            beside.unlink()
    return file


def leave_report(run: Path) -> None:
    """Write the report of a run that has just ended; what goes wrong is a warning, and costs the run nothing."""
    try:
        guarded("the report", ReportError, write_report, run)
    except (TiltyardError, MemoryError) as error:
        warnings.warn(f"{error or 'no memory is left'}; the run has no {NAME}", stacklevel=2)


def _page(records: Sequence[RunRecord]) -> Iterator[str]:
    scripts = [_asset(name) for name in _SCRIPTS]
    style = "\n".join(_asset(name) for name in _STYLES)
    title = " and ".join(record.name for record in records)
    played = [read_episodes(record.path / "trajectories.jsonl") for record in records]
    yield _head(title, style, scripts)
    yield _top(records)
    yield _data("runs", {"runs": [_overview(*pair) for pair in zip(records, played, strict=True)]})
    yield from (f"<script>{script}</script>\n" for script in scripts)
    # What is asked for later stands behind the scripts: the page is drawn before a browser has read it all.
    for number, (record, episodes) in enumerate(zip(records, played, strict=True)):
        yield _data(f"rows-{number}", _table(episodes.shown))
        model = (record.config.get("model") or {}).get("name")
        texts = token_texts(model if isinstance(model, str) else None, episodes.ids)
        yield _data(f"texts-{number}", {str(token): text for token, text in texts.items()})
        yield from _pages(number, episodes.shown)
    yield "</body></html>\n"


def _asset(name: str) -> str:
    text = (files("tiltyard.report") / name).read_text(encoding="utf-8")
    # The comment names a file that is not there.
    lines = [line for line in text.splitlines() if "sourceMappingURL" not in line[:40]]
    return "\n".join(lines).strip()


def _head(title: str, style: str, scripts: Sequence[str]) -> str:
    allowed = " ".join(_hash(script) for script in scripts)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f'<link rel="icon" href="data:,">\n<title>{html.escape(title)} · Tiltyard report</title>\n'
        f"<style>{style}</style>\n</head>\n"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _top(records: Sequence[RunRecord]) -> str:
    """The head of the page, which is there before any script runs."""
    runs = "".join(
        f'<li><span class="key key-{"ab"[number]}" aria-hidden="true"></span>'
        f"<strong>{html.escape(record.name)}</strong> <span>{html.escape(state_text(record))}</span></li>"
        for number, record in enumerate(records)
    )
    one = len(records) == 1
    title = html.escape(records[0].name) if one else "Two runs side by side"
    line = f"<p>{html.escape(state_text(records[0]))}</p>" if one else f'<ul class="runs">{runs}</ul>'
    return (
        '<body>\n<a class="skip" href="#main">Skip to the content</a>\n'
        f'<header class="top"><p class="brand">Tiltyard run report</p><h1>{title}</h1>{line}</header>\n'
        '<noscript><p class="note">This page draws with JavaScript that it brings along; it is off here.</p></noscript>'
        '\n<main id="main" tabindex="-1"><p id="loading" class="note">Unpacking the run…</p></main>\n'
    )


def _overview(record: RunRecord, episodes: Episodes) -> dict[str, Any]:
    steps = chosen_steps(record.steps)
    texts = _notes(record, episodes)
    known = [name for name in episodes.endings if name in set(Ending)]
    return {
        "name": record.name,
        "folder": str(record.path),
        "state": state_text(record),
        "facts": [asdict(fact) for fact in facts(record, episodes)],
        "verdict": (record.summary.get("ledger") or {}).get("verdict"),
        "notes": texts,
        "config": dict(flat_config(record.config)),
        "steps": [step["step"] for step in steps],
        "curves": [asdict(curve) for curve in curves(steps)],
        "scores": score_figures(record.evaluations),
        "endings": [
            {"name": name, "count": count, "error": episodes.errors.get(name)}
            for name, count in episodes.endings.items()
        ],
        "meanings": {name: ENDINGS[Ending(name)].meaning for name in known},
        "failed": [name for name in known if Ending(name).failed],
        "episodes": len(episodes.shown),
    }


def _notes(record: RunRecord, episodes: Episodes) -> list[str]:
    """What the page does not show, each in a sentence."""
    notes = list(record.notes)
    with_pages = sum(episode.page is not None for episode in episodes.shown)
    if with_pages < episodes.count:
        notes.append(
            f"{with_pages:,} of {episodes.count:,} episodes have their messages and tokens here; those of the others "
            "are in trajectories.jsonl."
        )
    if len(episodes.shown) < episodes.count:
        notes.append(f"The table has {len(episodes.shown):,} of {episodes.count:,} episodes, evenly spaced.")
    if episodes.replaced:
        notes.append(f"{episodes.replaced:,} episodes were played again by a later attempt, and stand here once.")
    if episodes.unread:
        notes.append(f"{episodes.unread:,} lines of trajectories.jsonl cannot be read and are left out.")
    if len(chosen_steps(record.steps)) < len(record.steps):
        notes.append(f"The curves have {len(chosen_steps(record.steps)):,} of {len(record.steps):,} steps.")
    return notes


def _table(episodes: Sequence[Episode]) -> dict[str, list[Any]]:
    """The rows as columns, which pack better; `page` numbers those that have one."""
    columns: dict[str, list[Any]] = {}
    number = 0
    for episode in episodes:
        has_page = episode.page is not None
        for name, value in {**episode.row, "page": number if has_page else None}.items():
            columns.setdefault(name, []).append(value)
        number += has_page
    return columns


def _pages(run: int, episodes: Sequence[Episode]) -> Iterator[str]:
    pages = [episode.page for episode in episodes if episode.page is not None]
    for start in range(0, len(pages), PAGES_TOGETHER):
        together = ",".join(pages[start : start + PAGES_TOGETHER])
        yield _packed(f"pages-{run}-{start // PAGES_TOGETHER}", f"[{together}]")


def _data(name: str, value: Any) -> str:
    return _packed(name, json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))


def _packed(name: str, text: str) -> str:
    """A block of data that no browser runs: base64 has no character that ends it, whatever it holds."""
    packed = gzip.compress(text.encode("utf-8", "backslashreplace"), 5, mtime=0)
    return f'<script type="application/gzip" id="{name}">{base64.b64encode(packed).decode()}</script>\n'
