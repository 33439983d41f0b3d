"""One thread that waits for everything at once: the host's frames, the output of commands, and the clock."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable

from tiltyard.sandbox.guest.wire import CHUNK, HEADER, MAX_FRAME

IN, OUT = select.EPOLLIN, select.EPOLLOUT
FULL = 1024 * 1024
"""With so many bytes not yet taken by the host, nothing more is read from commands and files."""


class Loop:
    """File descriptors and who is told when they are ready."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers: list[list] = []

    def wait_for(self, fd: int, mask: int, handler: Callable[[int], None]) -> None:
        """Call `handler(events)` whenever `fd` is ready, until `forget`."""
        if fd in self._handlers:
            self._poll.modify(fd, mask)
        else:
            self._poll.register(fd, mask)
        self._handlers[fd] = handler

    def forget(self, fd: int) -> None:
        """Wait for `fd` no longer; call it before closing one."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def every(self, seconds: float, task: Callable[[], bool]) -> None:
        """Call `task` now and then for as long as it returns true."""
        self._timers.append([time.monotonic() + seconds, seconds, task])

    def turn(self, busy: bool) -> None:
        """Wait for what is ready, or not at all when there is other work to do."""
        timeout = 0.0 if busy else -1.0
        if self._timers and not busy:
            timeout = max(0.0, min(timer[0] for timer in self._timers) - time.monotonic())
        for fd, events in self._poll.poll(timeout):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)
        now = time.monotonic()
        for timer in list(self._timers):
            if timer[0] <= now:
                timer[0] = now + timer[1]
                if not timer[2]():
                    self._timers.remove(timer)


class Link:
    """The host, at the other end of a socket; when it is gone the sandbox ends."""

    def __init__(self, loop: Loop, fd: int, receive: Callable[[int, int, bytes], None]) -> None:
        self._loop = loop
        self._fd = fd
        self._receive = receive
        self._arrived = bytearray()
        self._leaving: list[bytes | memoryview] = []
        self._waiting_bytes = 0
        self._writable = True
        os.set_blocking(fd, False)
        loop.wait_for(fd, IN, self._ready)

    @property
    def full(self) -> bool:
        """True while the host takes less than there is to send."""
        return self._waiting_bytes > FULL

    def send(self, kind: int, channel: int, payload: bytes = b"") -> None:
        """Send a frame, now or as soon as the host takes it."""
        frame = HEADER.pack(len(payload), kind, channel) + payload
        self._leaving.append(frame)
        self._waiting_bytes += len(frame)
        if self._writable:
            self._flush()

    def tell(self, kind: int, channel: int, value: object) -> None:
        """Send a frame whose payload is JSON."""
        self.send(kind, channel, json.dumps(value).encode())

    def _ready(self, events: int) -> None:
        if events & OUT:
            self._flush()
        if events & ~OUT:
            self._read()

    def _flush(self) -> None:
        while self._leaving:
            try:
                sent = os.write(self._fd, self._leaving[0])
            except BlockingIOError:
                break
            except OSError:
                os._exit(0)
            self._waiting_bytes -= sent
            if sent == len(self._leaving[0]):
                self._leaving.pop(0)
            else:
                self._leaving[0] = memoryview(self._leaving[0])[sent:]
        if bool(self._leaving) == self._writable:
            self._writable = not self._leaving
            self._loop.wait_for(self._fd, IN if self._writable else IN | OUT, self._ready)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, CHUNK * 4)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        self._arrived += data
        taken = 0
        while len(self._arrived) - taken >= HEADER.size:
            length, kind, channel = HEADER.unpack_from(self._arrived, taken)
            if length > MAX_FRAME:
                os._exit(1)
            if len(self._arrived) - taken < HEADER.size + length:
                break
            start = taken + HEADER.size
            taken = start + length
            self._receive(kind, channel, bytes(self._arrived[start:taken]))
        del self._arrived[:taken]
