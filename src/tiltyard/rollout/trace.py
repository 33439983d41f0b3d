"""Trajectories as lines of JSON, written so that a crash costs at most the line it cut."""

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

from tiltyard._boundary import guarded, shown
from tiltyard.errors import EnvError, TranscriptError
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.transcript import Transcript
from tiltyard.types import Task

MAX_INT_BITS = 14_000
"""Longer integers have more digits than Python reads back."""


def to_record(trajectory: Trajectory, **extra: Any) -> dict[str, Any]:
    """Write a trajectory as values that JSON has.

    `reward`, `failed`, `truncated` and `turns` are there for the reader and follow from the rest. A number that is not
    finite, which only `info` and `task.data` can hold, becomes a string; so does any object that JSON does not know.

    Args:
        trajectory: What happened.
        extra: Further fields, such as `step`; they may not have the name of a field of the record.

    Raises:
        ValueError: A name in `extra` is taken.
    """
    transcript = trajectory.transcript
    record: dict[str, Any] = {
        "episode_id": trajectory.episode_id,
        "task": _task_record(trajectory.task),
        "ending": trajectory.ending.value,
        "failed": trajectory.failed,
        "truncated": trajectory.truncated,
        "error": trajectory.error,
        "reward": trajectory.reward,
        "rewards": list(trajectory.rewards),
        "start_reward": trajectory.start_reward,
        "success": trajectory.success,
        "turns": trajectory.turns,
        "seconds": trajectory.seconds,
        "untrainable": trajectory.untrainable,
        "messages": list(trajectory.messages),
        "tools": list(trajectory.tools),
        "first_observation": trajectory.first_observation,
        "info": _told_fields(trajectory.info),
        "ids": transcript.ids if transcript else None,
        "mask": transcript.mask if transcript else None,
        "logprobs": transcript.logprobs if transcript else None,
        "turn": transcript.turn if transcript else None,
        "version": transcript.version if transcript and any(v is not None for v in transcript.version) else None,
    }
    if taken := sorted(record.keys() & extra.keys()):
        raise ValueError(f"these names are fields of the record: {', '.join(taken)}")
    return _jsonable({**record, **extra})


def from_record(record: Mapping[str, Any]) -> Trajectory:
    """Read a trajectory back; what `to_record` got as extra is left out.

    Raises:
        TranscriptError: The token lists do not fit together.
    """
    task = {**record["task"], "messages": tuple(record["task"]["messages"])}
    return Trajectory(
        episode_id=record["episode_id"],
        task=Task(**task),
        ending=Ending(record["ending"]),
        messages=tuple(record["messages"]),
        tools=tuple(record["tools"]),
        rewards=tuple(record["rewards"]),
        start_reward=record["start_reward"],
        error=record["error"],
        first_observation=record["first_observation"],
        info=record["info"],
        success=record["success"],
        transcript=_transcript(record),
        seconds=record["seconds"],
        untrainable=record.get("untrainable"),
    )


class TraceWriter:
    """Appends one line for each trajectory to a file, each in one write that is handed to the system at once.

    A line that an earlier process left unfinished is cut off, with a warning, when the file is opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        cut_unfinished(self.path)
        self._file = self.path.open("ab", buffering=0)

    def write(self, trajectory: Trajectory, **extra: Any) -> None:
        """Append a trajectory; `extra` as in `to_record`.

        Raises:
            OSError: The disk is full, or the file cannot be written; nothing of the line is left in it.
        """
        line = json.dumps(to_record(trajectory, **extra), ensure_ascii=False, allow_nan=False) + "\n"
        left = memoryview(line.encode("utf-8", "backslashreplace"))
        before = self._file.seek(0, os.SEEK_END)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            # The next line may find room again, and must not go on where this one broke off.
            self._file.truncate(before)
            raise

    def close(self) -> None:
        """Close the file; later calls do nothing."""
        self._file.close()

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_traces(path: str | Path) -> Iterator[dict[str, Any]]:
    """Read the records of a trace file, one at a time; `from_record` makes trajectories of them.

    A last line that was cut by a crash is left out, with a warning.

    Raises:
        ValueError: A line is not a record; the message names the file and the line.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                warnings.warn(f"{path}: line {number} was cut by a crash and is left out", stacklevel=2)
                return
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}: line {number} is not a record of a trajectory: {error}") from error
            yield record


def cut_unfinished(path: Path) -> None:
    """Cut off a last line that a crash left unfinished, with a warning; a file that is not there stays so."""
    if not path.exists() or not (size := path.stat().st_size):
        return
    with path.open("rb+") as file:
        end = size
        while end:
            start = max(end - 65536, 0)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            warnings.warn(f"{path}: the last line was cut by a crash and is removed", stacklevel=3)
            file.truncate(end)
            os.fsync(file.fileno())


def _transcript(record: Mapping[str, Any]) -> Transcript | None:
    if record["ids"] is None:
        return None
    version = record.get("version") or [None] * len(record["ids"])
    columns: list[list[Any]] = [record["ids"], record["mask"], record["logprobs"], record["turn"], version]
    if len({len(column) for column in columns}) != 1:
        raise TranscriptError(
            f"episode {record['episode_id']}: ids, mask, logprobs, turn and version are not of one length"
        )
    return Transcript(*map(list, columns), _turns=len(record["rewards"]))


def _task_record(task: Task) -> dict[str, Any]:
    values = {field.name: getattr(task, field.name) for field in fields(task)}
    return {**values, "data": _told_fields(task.data)}


def _told_fields(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {name if isinstance(name, str) else shown(name): _told(value) for name, value in values.items()}


def _told(value: Any) -> Any:
    """A value of a task's data or an environment's info; one that JSON cannot hold costs its episode nothing."""
    try:
        return guarded("its JSON", EnvError, _jsonable, value)
    except EnvError as error:
        return f"[a {type(value).__name__} that cannot be written: {error}]"


def _jsonable(value: Any) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= MAX_INT_BITS else shown(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_jsonable(item) for item in value]
    item: Any = getattr(value, "item", None)
    return _jsonable(item()) if callable(item) and getattr(value, "shape", None) == () else shown(value)
