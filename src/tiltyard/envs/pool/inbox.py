"""What a worker process says, read by those who wait for it: one of them reads for all."""

import select
import socket
import threading
import time
from collections.abc import Callable

from tiltyard.envs.pool.process_worker import HEADER

CHUNK = 1 << 16
DRAIN_POLL_S = 0.02

Key = tuple[int, int]
"""The kind of a message, and the number of the request."""


class Latch:
    """A message that comes once, or never.

    Attributes:
        come: True once it has come, or never will.
        value: The message; None before it came, and when it never will.
    """

    __slots__ = ("_asleep", "come", "value")

    def __init__(self) -> None:
        self.come = False
        self.value: bytes | None = None
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def sleep(self, timeout_s: float | None) -> bool:
        """Sleep until woken; False when the time is up."""
        return self._asleep.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0))

    def wake(self) -> None:
        """Wake whoever sleeps; once for each sleep."""
        self._asleep.release()


class Inbox:
    """The reading end of a channel, for many threads.

    Of the threads that wait, one reads and hands out what comes; when it has its own message, it wakes another to read
    on. While nobody waits, nobody reads.

    Attributes:
        finished: Set when the channel is at its end and everybody was told.
    """

    def __init__(self, channel: socket.socket, at_end: Callable[[], None]) -> None:
        """Set it up.

        Args:
            channel: What is read; closed at its end.
            at_end: Called by the thread that comes to the end, before anybody is told.
        """
        self.finished = threading.Event()
        self._channel = channel
        self._at_end = at_end
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)
        self._buffer = bytearray()
        self._lock = threading.Lock()
        self._expected: dict[Key, Latch] = {}
        self._sleeping: dict[Latch, None] = {}
        self._being_read = False

    def expect(self, key: Key) -> Latch:
        """Announce that a message is going to be waited for."""
        latch = Latch()
        with self._lock:
            if self.finished.is_set():
                latch.come = True
            else:
                self._expected[key] = latch
        return latch

    def wait(self, latch: Latch, timeout_s: float | None) -> bool:
        """Whether the message came, or never will, within the time."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            if latch.come:
                return True
            reads = not self._being_read
            self._being_read = True
            if not reads:
                self._sleeping[latch] = None
        if not reads:
            try:
                woken = latch.sleep(timeout_s)
            except BaseException:
                self._rise(latch)
                raise
            if not woken and self._rise(latch):
                return False
            if latch.come:
                return True
        return self._read_until(latch, end)

    def drain(self) -> None:
        """Read what is left, where nobody does, and wait until everybody was told."""
        while not self.finished.is_set():
            with self._lock:
                reads = not self._being_read
                self._being_read = True
            if reads:
                self._read_until(Latch(), None)
            else:
                self.finished.wait(DRAIN_POLL_S)

    def _rise(self, latch: Latch) -> bool:
        """Sleep no longer. False when the message came at this very moment; who is to read hands that on."""
        with self._lock:
            if latch in self._sleeping:
                del self._sleeping[latch]
                return True
        latch.sleep(None)  # it was woken, and may be slept on again
        if not latch.come:
            self._hand_on()
            return True
        return False

    def _read_until(self, latch: Latch, end: float | None) -> bool:
        """Read for all until this message comes; False when the time is up first."""
        try:
            while not latch.come and not self.finished.is_set():
                if not self._receive(end):
                    return False
            return True
        finally:
            self._hand_on()

    def _hand_on(self) -> None:
        """Let another of those who wait read on."""
        with self._lock:
            for latch in self._sleeping:
                del self._sleeping[latch]
                latch.wake()
                return
            self._being_read = False

    def _receive(self, end: float | None) -> bool:
        """Read once; False when nothing came in time."""
        if end is not None and not self._poll.poll(max(end - time.monotonic(), 0.0) * 1000):
            return False
        try:
            chunk = self._channel.recv(CHUNK)
        except OSError:
            chunk = b""
        if chunk:
            self._buffer += chunk
            self._hand_out()
        else:
            self._finish()
        return True

    def _hand_out(self) -> None:
        """Give each whole message to whoever waits for it; one that nobody waits for any more is dropped."""
        while len(self._buffer) >= HEADER.size:
            kind, number, length = HEADER.unpack_from(self._buffer)
            after = HEADER.size + length
            if len(self._buffer) < after:
                return
            body = bytes(memoryview(self._buffer)[HEADER.size : after])
            del self._buffer[:after]
            with self._lock:
                if (latch := self._expected.pop((kind, number), None)) is not None:
                    self._give(latch, body)

    def _finish(self) -> None:
        """Nothing comes any more: tell everybody."""
        self._at_end()
        with self._lock:
            self.finished.set()
            for latch in self._expected.values():
                self._give(latch, None)
            self._expected.clear()
            self._channel.close()

    def _give(self, latch: Latch, body: bytes | None) -> None:
        latch.value, latch.come = body, True
        if latch in self._sleeping:
            del self._sleeping[latch]
            latch.wake()
