"""A command in a sandbox, as the host sees it."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from tiltyard.errors import BoxArgumentError, BoxError
from tiltyard.sandbox.box_link import NONSENSE, BoxLink, Channel
from tiltyard.sandbox.box_model import Exited, Output, ProcessInfo
from tiltyard.sandbox.guest.wire import EXITED, PTY, STDERR, STDOUT, WINDOW

_STREAMS: dict[int, Literal["stdout", "stderr", "pty"]] = {STDOUT: "stdout", STDERR: "stderr", PTY: "pty"}

_LARGEST_SIZE = 0xFFFF


@dataclass(frozen=True, slots=True)
class Command:
    """What is to be run, complete: nothing is added to it in the sandbox."""

    cmd: str
    args: tuple[str, ...]
    envs: Mapping[str, str]
    cwd: str
    tag: str | None = None
    stdin: bool = False
    pty: tuple[int, int] | None = None


class Subscription:
    """One reader of a command's output: an async iterator that ends after `Exited`.

    Close it, or leave it as a context manager, when nothing more is to be read: a reader that is open and does not
    read holds the command up.
    """

    def __init__(self, process: "Process") -> None:
        self.waiting: deque[Output | Exited] = deque()
        self.consumed = 0
        self._process = process
        self._news = asyncio.Event()
        self._over = False

    def put(self, item: Output | Exited) -> None:
        """Something for this reader."""
        self.waiting.append(item)
        self._news.set()

    def close(self) -> None:
        """Read no more."""
        self._over = True
        self.waiting.clear()
        self._news.set()
        self._process.left(self)

    async def aclose(self) -> None:
        """As `close`."""
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output | Exited:
        while not self.waiting and not self._over:
            self._news.clear()
            await self._news.wait()
        if not self.waiting:
            raise StopAsyncIteration
        item = self.waiting.popleft()
        if isinstance(item, Exited):
            self.close()
        else:
            self.consumed += len(item.data)
            self._process.advance()
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Process:
    """A command that was started.

    Its output waits for the first reader; from then on each piece goes to those who read at that time, as fast as the
    slowest of them, and is dropped while nobody reads.
    """

    def __init__(self, link: BoxLink, command: Command, ended: Callable[["Process"], None]) -> None:
        self.pid = 0
        self.command = command
        self.exited: Exited | None = None
        self._link = link
        self._ended = ended
        self._readers: list[Subscription] = []
        self._held: list[Output] | None = []
        self._received = 0
        self._granted = 0
        self._feeding = asyncio.Lock()
        self._channel: Channel | None = None

    @property
    def tag(self) -> str | None:
        """The name that it was given."""
        return self.command.tag

    @property
    def info(self) -> ProcessInfo:
        """What it is."""
        command = self.command
        return ProcessInfo(self.pid, command.cmd, command.args, command.envs, command.cwd, command.tag)

    async def start(self) -> None:
        """Start it.

        Raises:
            BoxError: It could not be started.
        """
        command = self.command
        if command.pty is not None:
            _check_size(*command.pty)
        arguments = {
            "cmd": command.cmd,
            "args": list(command.args),
            "envs": dict(command.envs),
            "cwd": command.cwd,
            "stdin": command.stdin,
            "pty": list(command.pty) if command.pty else None,
        }
        channel = self._channel = self._link.open("spawn", arguments, self._receive)
        channel.lost = lambda error: self._finish(Exited(-1, None, str(error)))
        try:
            self.pid = int((await channel.answer)["pid"])
        except BoxError:
            channel.close()
            raise
        except NONSENSE as error:
            raise self._link.broke("a process without a number") from error

    def subscribe(self) -> Subscription:
        """Read its output from now on; the first reader gets what there was before, too."""
        reader = Subscription(self)
        reader.consumed = self._received
        if self._held is not None:
            held, self._held = self._held, None
            reader.consumed -= sum(len(item.data) for item in held)
            for item in held:
                reader.put(item)
        if self.exited is not None:
            reader.put(self.exited)
        else:
            self._readers.append(reader)
        return reader

    async def send_stdin(self, data: bytes) -> None:
        """Write to its standard input or terminal; returns when it is on the way, as fast as the command reads.

        Raises:
            BoxGoneError: The sandbox is dead.
        """
        if self._channel is not None and self.exited is None:
            async with self._feeding:
                await self._channel.send(data)

    async def close_stdin(self) -> None:
        """Close its standard input."""
        if self._channel is not None and self.exited is None:
            async with self._feeding:
                self._channel.end()

    async def signal(self, number: int) -> None:
        """Send a signal to it and to what it started and left in its group.

        Raises:
            BoxError: It is over, or there is no such signal.
        """
        await self._link.call("signal", pid=self.pid, number=number)

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of its terminal.

        Raises:
            BoxError: It is over, or no terminal has that size.
        """
        _check_size(rows, cols)
        await self._link.call("resize", pid=self.pid, rows=rows, columns=cols)

    def left(self, reader: Subscription) -> None:
        """A reader reads no more."""
        if reader in self._readers:
            self._readers.remove(reader)
            self.advance()

    def advance(self) -> None:
        """Let the command write on, as far as its slowest reader has read."""
        if self._held is not None or self._channel is None:
            return
        read = min((reader.consumed for reader in self._readers), default=self._received)
        if read - self._granted >= WINDOW // 4:
            self._channel.grant(read - self._granted)
            self._granted = read

    def _receive(self, kind: int, payload: bytes) -> None:
        if kind == EXITED:
            told = json.loads(payload)
            signal = None if told["signal"] is None else int(told["signal"])
            self._finish(Exited(int(told["code"]), signal))
            return
        output = Output(_STREAMS[kind], payload)
        self._received += len(payload)
        if self._received - self._granted > WINDOW:
            raise ValueError("more output than was granted")
        if self._held is not None:
            self._held.append(output)
        for reader in self._readers:
            reader.put(output)
        self.advance()

    def _finish(self, exited: Exited) -> None:
        if self.exited is not None:
            return
        self.exited = exited
        if self._channel is not None:
            self._channel.fail(BoxError("the command ended before it was said to have started"))
            self._channel.close()
        readers, self._readers = self._readers, []
        for reader in readers:
            reader.put(exited)
        self._ended(self)


def _check_size(rows: int, cols: int) -> None:
    if not (0 < rows <= _LARGEST_SIZE and 0 < cols <= _LARGEST_SIZE):
        raise BoxArgumentError(f"a terminal has from 1 to {_LARGEST_SIZE} rows and columns, got {rows} and {cols}")
