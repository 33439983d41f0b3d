"""Where connections come in: who may enter, what plain HTTP is told, and whether there is a place."""

import contextlib
import hmac
import ipaddress
import os
import socket
import threading
import time
from typing import Any

from tiltyard.errors import ConfigurationError
from tiltyard.serving.frames import error_frame
from tiltyard.serving.making import Described
from tiltyard.serving.place import Place
from tiltyard.serving.socket import Handshake, ServedSocket

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
BACKLOG = 1024
TRY_AGAIN_LATER = 1013

HIGHEST_PORT = 65535


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_token(host: str, token: str | None) -> None:
    """Check that what other machines can reach asks for a token.

    Raises:
        ConfigurationError: It does not, or the token is empty, or one of the two is no text.
    """
    if not isinstance(host, str) or not isinstance(token, str | None):
        raise ConfigurationError(
            f"host and token must be text, got host={host!r} and a token of {type(token).__name__}"
        )
    if token is not None and not token.strip():
        raise ConfigurationError("the token is empty; set one of at least 16 characters, or bind to 127.0.0.1")
    if token is None and not is_loopback(host):
        raise ConfigurationError(
            f"host={host!r} can be reached from other machines, and an environment may run code: give a token. In "
            "Python token=…, on the command line --token-env NAME with the token in that variable (python -c 'import "
            "secrets; print(secrets.token_urlsafe())' makes one); 127.0.0.1 needs none"
        )


class Desk:
    """Listens, answers HTTP, and leads sessions to their place; each connection on a thread of its own."""

    def __init__(self, host: str, port: int, token: str | None, described: Described, place: Place) -> None:
        """Bind, and listen once `start` is called.

        Raises:
            ConfigurationError: The address cannot be bound.
        """
        self._described = described
        self._place = place
        self._token = token
        self._since = time.monotonic()
        sound = isinstance(port, int) and not isinstance(port, bool) and 0 <= port <= HIGHEST_PORT
        if not sound:  # the socket library raises OverflowError, and leaves its socket open
            raise ConfigurationError(
                f"host={host!r}, port={port!r} cannot be bound: a port is 0 to {HIGHEST_PORT}; port=0 takes a free one"
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise ConfigurationError(
                f"host={host!r}, port={port!r} cannot be bound: {error.strerror or error}; port=0 takes a free one"
            ) from error
        self.port: int = self._listening.getsockname()[1]
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104  # only compared with
        self.url = f"http://{shown}:{self.port}"
        self._thread = threading.Thread(target=self._listen, name="tiltyard-serve", daemon=True)

    def start(self) -> None:
        """Take connections from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more connections."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listening.close()
        if self._thread.is_alive():
            self._thread.join()

    def health(self) -> dict[str, Any]:
        """That it lives, and how busy it is."""
        report = self._place.report()
        return {
            "status": "healthy",
            "environment": self._described.name,
            "active_sessions": self._place.active,
            "max_sessions": self._place.capacity,
            "sessions": report.sessions,
            "leaked": report.leaked,
            "uptime_s": round(time.monotonic() - self._since, 1),
            "load": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else [],
        }

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                if self._listening.fileno() == -1 or not _still_listening(self._listening):
                    return
                time.sleep(0.05)  # out of file descriptors, or a connection that ended at once
                continue
            threading.Thread(target=self._receive, args=(connection,), name="tiltyard-session", daemon=True).start()

    def _receive(self, connection: socket.socket) -> None:
        served = ServedSocket(connection, MAX_MESSAGE_BYTES)
        handshake = served.handshake()
        if handshake is None:
            connection.close()
            return
        allowed = self._token is None or hmac.compare_digest((handshake.bearer or "").encode(), self._token.encode())
        if handshake.endpoint == "health":
            served.respond(200, self.health() if allowed else {"status": "healthy"})
        elif not allowed:
            served.respond(401, {"detail": "a bearer token is needed: Authorization: Bearer TOKEN"})
        elif handshake.endpoint == "ws":
            self._open(served, handshake)
        elif handshake.endpoint == "schema":
            served.respond(200, self._described.schema)
        elif handshake.endpoint == "metadata":
            served.respond(
                200, {"name": self._described.name, "description": "Served by tiltyard; sessions are at /ws"}
            )
        else:
            served.respond(404, {"detail": "there are /ws, /schema, /health and /metadata"})

    def _open(self, served: ServedSocket, handshake: Handshake) -> None:
        if handshake.origin is not None and self._token is None:
            # A page in a browser on this machine could otherwise run code through it.
            served.respond(403, {"detail": "a request from a web page needs a token"})
        elif not self._place.admit(served) and served.accept():
            active, most = self._place.active, self._place.capacity
            text = f"Server at capacity: {active}/{most} sessions active. Serve with a larger max_concurrent_envs"
            served.last_word(error_frame(text, "CAPACITY_REACHED", active_sessions=active, max_sessions=most))
            served.finish(TRY_AGAIN_LATER)


def _still_listening(listening: socket.socket) -> bool:
    try:
        return bool(listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False
