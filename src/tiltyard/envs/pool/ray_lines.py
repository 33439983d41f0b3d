"""Connections of our own from the processes of actors: nothing is said on one, and its end is the end of a process.

Ray tells within milliseconds that a process has ended, as long as the daemon of its machine is there to tell. When that
went with it, Ray first waits for what the cluster knows, and that learns it from health checks: after 14 s by default.
"""

import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

DAEMON = "raylet"
"""What starts the processes of actors, one on each machine; they end with it."""

DIAL_TIMEOUT_S = 10.0
DAEMON_POLL_S = 0.1
TOKEN_BYTES = 16

Line = tuple[str, int, bytes]
"""Where to dial, and what to say there, once."""

Gone = Callable[[], None]


class Lines:
    """The end where lines arrive. Whoever dials without having been told what to say is hung up on."""

    def __init__(self, address: str) -> None:
        """Listen on this address of this machine.

        Raises:
            OSError: It is none of this machine's.
        """
        self._listener = socket.create_server((address, 0))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._arrived)
        self._bell, self._wake = socket.socketpair()
        self._selector.register(self._bell, selectors.EVENT_READ, lambda bell: None)
        self._expected: dict[bytes, Gone] = {}
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="tiltyard-ray-lines", daemon=True)
        self._thread.start()

    def expect(self, gone: Gone) -> Line:
        """A line that somebody is going to dial; `gone` is called at its end, and must not take long."""
        token = secrets.token_bytes(TOKEN_BYTES)
        self._expected[token] = gone
        host, port = self._listener.getsockname()[:2]
        return host, port, token

    def close(self) -> None:
        """Hang up, and tell nobody."""
        self._stopped = True
        self._wake.close()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            self._hang_up(key.fileobj)  # pyright: ignore[reportArgumentType]  # sockets, all of them
        self._selector.close()

    def _serve(self) -> None:
        while not self._stopped:
            for key, _ in self._selector.select():
                key.data(key.fileobj)

    def _arrived(self, listener: socket.socket) -> None:
        try:
            line, _ = listener.accept()
        except OSError:
            return  # it has hung up already
        line.setblocking(False)
        self._selector.register(line, selectors.EVENT_READ, self._named)

    def _named(self, line: socket.socket) -> None:
        gone = self._expected.pop(_heard(line), None)
        if gone is None:
            self._hang_up(line)
        else:
            self._selector.modify(line, selectors.EVENT_READ, partial(self._ended, gone))

    def _ended(self, gone: Gone, line: socket.socket) -> None:
        self._hang_up(line)
        gone()

    def _hang_up(self, line: socket.socket) -> None:
        self._selector.unregister(line)
        line.close()


def hold(line: Line) -> None:
    """Dial, and keep the line until this process ends, which it does with Ray's daemon; on a thread of its own."""
    threading.Thread(target=_hold, args=(line, os.getppid()), name="tiltyard-line", daemon=True).start()


def _hold(line: Line, parent: int) -> None:
    host, port, token = line
    try:
        held = socket.create_connection((host, port), DIAL_TIMEOUT_S)
        # A child that an environment forks must not keep the line when this process is gone.
        os.register_at_fork(after_in_child=held.close)
        held.sendall(token)
    except OSError:
        return  # nobody can be reached there: then it is Ray that tells
    if not _is_daemon(parent):
        threading.Event().wait()
    while os.getppid() == parent:
        time.sleep(DAEMON_POLL_S)
    held.close()  # now: a process of many threads takes its time to end
    os._exit(1)  # as Ray does itself, up to a second later


def _is_daemon(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip() == DAEMON
    except OSError:
        return False


def _heard(line: socket.socket) -> bytes:
    try:
        return line.recv(TOKEN_BYTES)
    except OSError:
        return b""
