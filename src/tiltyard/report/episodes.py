"""The episodes of a run for its report: a row of the table for each, and what was said and sampled for most."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tiltyard.report.curves import rounded
from tiltyard.report.reading import parsed

MAX_ROWS = 20_000
"""More episodes than this and the table has so many of them, evenly spaced; those that have their pages stay."""

MAX_BYTES = 48 << 20
"""So much of `trajectories.jsonl` comes with its messages and tokens; of a longer one the failed episodes, to a tenth
of this, and evenly spaced others do."""

MAX_TEXT = 100_000
"""A message, an argument or an error that is longer is cut."""

_SNIPPET = 100


@dataclass(slots=True)
class Episode:
    """One episode: its row of the table, and its page as JSON, None where only `trajectories.jsonl` has it."""

    row: Mapping[str, Any]
    page: str | None


@dataclass(frozen=True, slots=True)
class Episodes:
    """The episodes of a run.

    Attributes:
        shown: Those of the table, in the order in which they were finished.
        count: How many there are.
        replaced: How many were played again by a later attempt; of those only the last is counted and shown.
        endings: How many ended how.
        errors: The first error of each ending that has one.
        ids: The token ids that the pages hold.
        unread: How many lines could not be read.
    """

    shown: tuple[Episode, ...]
    count: int
    replaced: int
    endings: Mapping[str, int]
    errors: Mapping[str, str]
    ids: frozenset[int]
    unread: int


def read_episodes(file: Path, max_bytes: int = MAX_BYTES, max_rows: int = MAX_ROWS) -> Episodes:
    """Read the episodes of a trace file; where there is none, there are none."""
    found: dict[tuple[str, str], Episode] = {}
    ids: set[int] = set()
    errors: dict[str, str] = {}
    unread = lines = 0
    for record, wanted in _records(file, max_bytes):
        lines += 1
        if "episode_id" not in record or "ending" not in record:
            unread += 1
            continue
        if record.get("error"):
            errors.setdefault(str(record["ending"]), _cut(record["error"]))
        key = (str(record.get("phase")), str(record["episode_id"]))
        # A later line of the same episode is of a later attempt, and stands where that one finished.
        found.pop(key, None)
        found[key] = Episode(_row(record), _page(record) if wanted else None)
        if wanted:
            ids.update(record.get("ids") or ())
    episodes = list(found.values())
    return Episodes(
        shown=tuple(_thinned(episodes, max_rows)),
        count=len(episodes),
        replaced=lines - unread - len(episodes),
        endings=dict(Counter(episode.row["ending"] for episode in episodes).most_common()),
        errors=errors,
        ids=frozenset(ids),
        unread=unread,
    )


def _records(file: Path, max_bytes: int) -> Iterator[tuple[dict[str, Any], bool]]:
    """Give each record, and whether its page is wanted."""
    if not file.is_file():
        return
    every = -(-file.stat().st_size // max_bytes)
    for_failed = max_bytes // 10
    with file.open("rb") as lines:
        for number, line in enumerate(lines):
            if not line.endswith(b"\n"):
                return
            record = parsed(line)
            wanted = number % every == 0
            if record.get("failed") and not wanted and for_failed >= len(line):
                for_failed -= len(line)
                wanted = True
            yield record, wanted and len(line) <= max_bytes


def _thinned(episodes: Sequence[Episode], limit: int) -> list[Episode]:
    if len(episodes) <= limit:
        return list(episodes)
    plain = [number for number, episode in enumerate(episodes) if episode.page is None]
    room = max(0, limit - (len(episodes) - len(plain)))
    kept = {plain[number * len(plain) // room] for number in range(room)}
    return [episode for number, episode in enumerate(episodes) if episode.page is not None or number in kept]


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    mask = record.get("mask")
    return {
        "id": str(record["episode_id"]),
        "phase": str(record.get("phase") or ""),
        "step": record.get("step"),
        "group": record.get("group"),
        "attempt": record.get("attempt", 0),
        "reward": rounded(record.get("reward")),
        "success": record.get("success"),
        "turns": record.get("turns"),
        "tokens": sum(mask) if mask else None,
        "ending": str(record["ending"]),
        "seconds": rounded(record.get("seconds")),
        "task": _task(record.get("task") or {}),
        "last": _snippet(record),
    }


def _task(task: Mapping[str, Any]) -> str:
    row = task.get("row_index")
    return f"row {row}" if row is not None else f"seed {task.get('seed')}"


def _snippet(record: Mapping[str, Any]) -> str:
    """How the episode ends to a reader: its error, or the last that the model said."""
    if record.get("error"):
        return _cut(str(record["error"]), _SNIPPET)
    said = [message for message in record.get("messages") or () if message.get("role") == "assistant"]
    if not said or not record.get("turns"):
        return ""
    last = said[-1]
    calls = [str((call.get("function") or {}).get("name")) for call in last.get("tool_calls") or ()]
    return _cut(" ".join(str(last.get("content") or "").split()) or ", ".join(f"{name}(…)" for name in calls), _SNIPPET)


def _page(record: Mapping[str, Any]) -> str:
    kept = {name: record.get(name) for name in ("rewards", "start_reward", "error", "untrainable", "task")}
    page = {
        **kept,
        "info": _short(record.get("info") or {}),
        "messages": [_short(message) for message in record.get("messages") or ()],
        "tools": [_short((tool.get("function") or {}).get("name")) for tool in record.get("tools") or ()],
        **_tokens(record),
    }
    return json.dumps(page, ensure_ascii=False, separators=(",", ":"), default=str)


def _tokens(record: Mapping[str, Any]) -> dict[str, Any]:
    """The tokens as ids, stretches of [how many, sampled or not, turn], and the log-probabilities of those sampled."""
    ids, mask, turns = record.get("ids"), record.get("mask") or (), record.get("turn") or ()
    if not ids:
        return {}
    spans = [[len(list(same)), int(sampled), turn] for (sampled, turn), same in groupby(zip(mask, turns, strict=False))]
    logprobs = (value for value, sampled in zip(record.get("logprobs") or (), mask, strict=False) if sampled)
    return {"ids": ids, "spans": spans, "logprobs": [None if value is None else round(value, 3) for value in logprobs]}


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, Mapping):
        return {str(name): _short(item) for name, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list | tuple) else value


def _cut(text: str, limit: int = MAX_TEXT) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"
