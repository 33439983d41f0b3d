"""What a command printed, kept in little memory and shown so that its end is never what is cut."""

from collections import deque
from dataclasses import dataclass

from tiltyard.envs.observation import MAX_OBSERVATION_CHARS

MAX_COMMAND_CHARS = 8 * 1024 * 1024
"""A command that has printed this much is stopped: its text would not be shown anyway."""

TIMED_OUT = 124
"""The exit code of a command that was stopped at its time limit, as of `timeout`."""


class Kept:
    """The head and the tail of a stream, and how long it was."""

    __slots__ = ("_head", "_head_chars", "_tail", "_tail_chars", "chars")

    def __init__(self) -> None:
        self.chars = 0
        self._head: list[str] = []
        self._head_chars = 0
        self._tail: deque[str] = deque()
        self._tail_chars = 0

    def add(self, text: str) -> None:
        """Take the next piece."""
        self.chars += len(text)
        room = MAX_OBSERVATION_CHARS - self._head_chars
        if room > 0:
            self._head.append(text[:room])
            self._head_chars += len(text[:room])
            text = text[room:]
        if text:
            self._tail.append(text)
            self._tail_chars += len(text)
            while self._tail_chars - len(self._tail[0]) >= MAX_OBSERVATION_CHARS:
                self._tail_chars -= len(self._tail.popleft())

    def shown(self, room: int) -> str:
        """The text in so many characters: whole, or its head and its tail with a line between that says so."""
        head, tail = "".join(self._head), "".join(self._tail)
        if self.chars <= room:
            return head + tail
        mark = f"\n[… {self.chars - room} of {self.chars} characters cut …]\n"
        left = max(room - len(mark), 2)
        first = left // 2
        return head[:first] + mark + (head + tail)[-(left - first) :]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What one command came to.

    Attributes:
        stdout: What it printed.
        stderr: What it printed there.
        exit_code: Its code; 124 when it was stopped at its time limit, -1 when it was stopped for its output.
        stopped: Why it was stopped; None when it ended by itself.
        timed_out: Whether that was its time limit.
    """

    stdout: Kept
    stderr: Kept
    exit_code: int
    stopped: str | None = None
    timed_out: bool = False

    def text(self, room: int = MAX_OBSERVATION_CHARS) -> str:
        """stdout, `[stderr]`, why it was stopped, `[exit code: N]`: the streams are cut, the rest never is."""
        marks = [f"[{self.stopped}]"] if self.stopped else []
        if self.exit_code != 0:
            marks.append(f"[exit code: {self.exit_code}]")
        end = "\n".join(marks)
        free = room - len(end) - len("\n[stderr]\n\n")
        for_stderr = max(free // 2, free - self.stdout.chars)
        stderr = self.stderr.shown(for_stderr)
        stdout = self.stdout.shown(free - len(stderr))
        text = stdout
        if self.stderr.chars:
            text = on_new_line(text) + f"[stderr]\n{stderr}"
        return on_new_line(text) + end if end else text

    def cut(self, room: int = MAX_OBSERVATION_CHARS) -> bool:
        """Whether `text` leaves something out."""
        return len(self.text(self.stdout.chars + self.stderr.chars + 1000)) > room


def on_new_line(text: str) -> str:
    """The text, so that what is added begins a line."""
    return text if not text or text.endswith("\n") else text + "\n"
