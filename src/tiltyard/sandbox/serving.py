"""One server's life on an event loop: boxes are kept ready, requests answered, and at the end nothing is left."""

import asyncio
import logging
import os
import socket
import tempfile
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tiltyard.errors import ConfigurationError
from tiltyard.sandbox.app import sandbox_app
from tiltyard.sandbox.box_maker import BoxMaker
from tiltyard.sandbox.box_model import Template
from tiltyard.sandbox.isolation import Isolation, reachable
from tiltyard.sandbox.live import Sandboxes, with_offline

BACKLOG = 1024

KEEP_ALIVE_S = 600
"""Longer than the 300 s for which clients keep an idle connection: a server that closes first loses requests."""

GRACE_S = 2
"""How long requests under way are waited for when the server ends."""


_log = logging.getLogger("tiltyard.sandbox.connections")
_log.addFilter(lambda record: "without completing response" not in record.getMessage())
"""A download whose sandbox dies is cut on purpose: nothing else tells a client that it is not whole."""


class _Connection(H11Protocol):
    """A connection with a log of this server's own: other servers of the process keep theirs as they set it up."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _log
        self.access_log = False


def _folder(isolation: Isolation) -> Path:
    """Where servers of this user keep what sandboxes are made with; a later one clears away what a crash left."""
    above = Path(tempfile.gettempdir())
    if isolation.as_root and not reachable(above):
        above = Path("/tmp")  # noqa: S108  # the folder in it is checked to be this user's own
    return above / f"tiltyard-sandboxes-{os.getuid()}"


class Serving:
    """Made on any thread; `run` is the life of the server.

    Attributes:
        ready: Done once requests are answered, or with the error that kept it from that.
    """

    def __init__(
        self, isolation: Isolation, templates: Mapping[str, Template], *, key: str, warm: int, max_sandboxes: int
    ) -> None:
        self.ready: Future[None] = Future()
        self._templates = templates
        self._maker = BoxMaker(isolation, _folder(isolation), with_offline(templates.values()), warm)
        self._sandboxes = Sandboxes(self._maker, templates, max_sandboxes)
        self._key = key
        self._socket: socket.socket | None = None
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    @property
    def live(self) -> int:
        """How many sandboxes there are."""
        return len(self._sandboxes)

    def bind(self, host: str, port: int) -> str:
        """Listen; returns the URL.

        Raises:
            ConfigurationError: The address cannot be bound.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Without the protocol's number asyncio leaves Nagle's algorithm on, and every small answer waits 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except (OSError, OverflowError) as error:
            listener.close()
            raise ConfigurationError(f"cannot listen on host={host!r}, port={port!r}: {error}") from error
        listener.setblocking(False)
        self._socket = listener
        _listening.add(self)
        name, bound = listener.getsockname()[:2]
        return f"http://[{name}]:{bound}" if family == socket.AF_INET6 else f"http://{name}:{bound}"

    async def run(self) -> None:
        """Answer requests until `stop`; then end every sandbox."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self._stopping.is_set():
            self._stop.set()
        starting = asyncio.ensure_future(self._maker.start())
        await asyncio.wait((starting,))
        error = starting.exception()
        if error is not None:
            self.let_go()
            await self._maker.close()
            self.ready.set_exception(error)
            return
        config = uvicorn.Config(
            sandbox_app(self._sandboxes, self._key),
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
            server_header=False,
        )
        server = uvicorn.Server(config)
        assert self._socket is not None
        answering = asyncio.ensure_future(server.serve(sockets=[self._socket]))
        stop = asyncio.ensure_future(self._stop.wait())
        self.ready.set_result(None)
        try:
            await asyncio.wait((answering, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._sandboxes.close()
            server.should_exit = True
            await self._maker.close()
            await answering
            stop.cancel()

    def stop(self) -> None:
        """Let `run` end; from any thread, more than once."""
        self._stopping.set()
        if self._loop is None or self._stop is None or self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(self._stop.set)
        except RuntimeError:
            return  # the loop closed in between

    def let_go(self) -> None:
        """Free the port in a process that does not answer on it."""
        if self._socket is not None:
            self._socket.close()


_listening: "weakref.WeakSet[Serving]" = weakref.WeakSet()


def _let_go_in_child() -> None:
    """A forked child holds the listening sockets too, and would keep their ports after the parent's end."""
    for serving in list(_listening):
        serving.let_go()


os.register_at_fork(after_in_child=_let_go_in_child)
