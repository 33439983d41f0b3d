"""One accepted connection: its HTTP request, then WebSocket messages, on a blocking socket.

The thread that serves the session waits in `recv` itself: no event loop stands between the socket and the
environment, which costs two hand-offs between threads less for each step.
"""

import contextlib
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from tiltyard._optional import require

READ_BYTES = 65_536
HEAD_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 60
DRAIN_TIMEOUT_S = 2.0
LAST_WORD_TIMEOUT_S = 5.0
UNACKNOWLEDGED_MS = 60_000


class Handshake:
    """The request that a connection began with."""

    __slots__ = ("bearer", "endpoint", "origin")

    def __init__(self, path: str, headers: Any) -> None:
        self.endpoint = path.partition("?")[0].rstrip("/").rpartition("/")[2]
        self.origin = next(iter(headers.get_all("Origin")), None)
        told = headers.get_all("Authorization")
        kind, _, given = (told[0] if len(told) == 1 else "").partition(" ")
        self.bearer = given.strip() if kind.lower() == "bearer" else _query_token(path)


class ServedSocket:
    """A connection from its first byte to its last.

    One thread at a time reads; whoever writes, or reads without waiting, holds `lock`.
    """

    def __init__(self, connection: socket.socket, max_bytes: int, head: bytes = b"") -> None:
        """Wrap it; `head` are bytes of its request that another process has read."""
        server = require("websockets.server", "serve")
        self.lock = threading.Lock()
        self.socket = connection
        self.head = b""
        self._protocol: Any = server.ServerProtocol(max_size=max_bytes)
        self._opcodes: Any = require("websockets.frames", "serve").Opcode
        self._request: Any = None
        self._messages: deque[bytes] = deque()
        self._parts: list[bytes] = []
        self._ended = False
        self._already = head

    def handshake(self) -> Handshake | None:
        """Read the request; None when what came is none, and was answered so."""
        self.socket.settimeout(HEAD_TIMEOUT_S)
        while self._request is None:
            try:
                data, self._already = self._already or self.socket.recv(READ_BYTES), b""
            except OSError:
                return None
            self.head += data
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            for event in self._protocol.events_received():
                self._request = event
            hopeless = not data or self._protocol.handshake_exc is not None or not self.head[:1].isalpha()
            if self._request is None and hopeless:  # TLS, say, whose greeting has no end of line
                with contextlib.suppress(OSError):
                    self.socket.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
                return None
        return Handshake(self._request.path, self._request.headers)

    def respond(self, status: int, body: Mapping[str, Any]) -> None:
        """Answer the request with JSON, and end."""
        response = self._protocol.reject(status, json.dumps(body) + "\n")
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        self._protocol.send_response(response)
        self._flush()
        self._drain()

    def accept(self) -> bool:
        """Answer the request by opening a session's WebSocket; False when it asked for none."""
        response = self._protocol.accept(self._request)
        self._protocol.send_response(response)
        self._flush()
        if response.status_code != 101:
            self._drain()
            return False
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # a ping that a dead host does not acknowledge ends the session
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
        return True

    def receive(self) -> bytes | None:
        """Wait for the next message; None when there will be none."""
        while not self._messages:
            if self._ended:
                return None
            try:
                data = self.socket.recv(READ_BYTES)
            except OSError:
                data = b""
            with self.lock:
                self._take(data)
        return self._messages.popleft()

    def look(self) -> bool:
        """Take what has come, without waiting; False when the other side has ended. The caller holds `lock`."""
        while not self._ended:
            try:
                data = self.socket.recv(READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                data = b""
            self._take(data)
        return False

    def send(self, message: bytes) -> None:
        """Send one message. The caller holds `lock`."""
        if not self._ended:
            self._protocol.send_text(message)
            self._flush()

    def ping(self) -> None:
        """Keep proxies on the way from closing a quiet connection. The caller holds `lock`."""
        if not self._ended:
            self._protocol.send_ping(b"")
            self._flush()

    def last_word(self, message: bytes) -> None:
        """Send one message before a session could begin, and wait until the client has asked what it answers.

        A client that asks after the close learns of the close only, and dials again.
        """
        with self.lock:
            self.send(message)
        self.socket.settimeout(LAST_WORD_TIMEOUT_S)
        self.receive()

    def finish(self, code: int = 1000, reason: str = "") -> None:
        """Close it as the protocol asks, and wait for a short time until the other side has too."""
        with self.lock:
            if self._protocol.state.name == "OPEN":
                self._protocol.send_close(code, reason)
            self._ended = True
            self._flush()
        self._drain()

    def abort(self) -> None:
        """End it now, from any thread: whoever waits for it sees its end."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _take(self, data: bytes) -> None:
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        opcodes = self._opcodes
        for event in self._protocol.events_received():
            if event.opcode in (opcodes.TEXT, opcodes.BINARY, opcodes.CONT):
                self._parts.append(bytes(event.data))
                if event.fin:
                    self._messages.append(b"".join(self._parts))
                    self._parts.clear()
        if self._protocol.state.name == "OPEN":
            self._flush()
        else:
            # The answer to its closing waits for `finish`: then the session is free again once the client has closed.
            self._ended = True

    def _flush(self) -> None:
        out = b"".join(self._protocol.data_to_send())
        if out:
            try:
                self.socket.sendall(out)
            except OSError:
                self._ended = True

    def _drain(self) -> None:
        """Close without losing what was sent: a socket that is closed with bytes unread resets the connection."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
            self.socket.settimeout(DRAIN_TIMEOUT_S)
            while self.socket.recv(READ_BYTES):
                continue
        except OSError:
            pass
        finally:
            self.socket.close()


def _query_token(path: str) -> str | None:
    for part in path.partition("?")[2].split("&"):
        name, _, value = part.partition("=")
        if name == "token":
            return value
    return None
