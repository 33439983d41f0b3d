"""One session on an MCP server: opened, called with deadlines, lost, opened again and closed, from any thread."""

import asyncio
import atexit
import concurrent.futures
import logging
import os
import tempfile
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import IO, Any
from urllib.parse import urlsplit

from tiltyard._boundary import guarded
from tiltyard._local import is_this_machine
from tiltyard._optional import require
from tiltyard.errors import EnvTimeoutError, LostSessionError, ToolError
from tiltyard.tools.mcp_server import McpServer

_log = logging.getLogger(__name__)

EXTRA = "mcp"
CLOSE_TIMEOUT_S = 10.0
"""How long a close waits for the server; the SDK ends a process that does not end itself before that."""

MAX_STDERR_CHARS = 1000


class McpSession:
    """A session with one server. Calls may come from several threads at a time.

    A session that was lost is opened again by `renew`, not by the next call: what the server knew of the
    episode is gone. A forked process has none of its parent's sessions.
    """

    def __init__(self, server: McpServer) -> None:
        """Open the session.

        Raises:
            MissingExtraError: The `mcp` extra is not installed.
            LostSessionError: The server cannot be reached, or does not answer in time.
        """
        self.server = server
        self._lock = threading.Lock()
        self._closed = False
        self._connection: _Connection | None = self._connected()
        self.tools: Sequence[Any] = self._connection.tools
        atexit.register(self.close)

    @property
    def held(self) -> bool:
        """Whether the session is open."""
        connection = self._connection
        return connection is not None and connection.alive

    def renew(self) -> None:
        """Open the session again where it was lost.

        Raises:
            LostSessionError: It was closed, or the server cannot be reached.
        """
        with self._lock:
            if self._closed:
                raise LostSessionError(f"the session on MCP server {self.server.name!r} was closed")
            if self._connection is None or not self._connection.alive:
                self._drop()
                self._connection = self._connected()

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool; gives the SDK's `CallToolResult`.

        Raises:
            ToolError: The server refused the call.
            EnvTimeoutError: There was no answer in time. The session stays open.
            LostSessionError: The session is gone.
        """
        connection = self._connection
        if connection is None or not connection.alive:
            raise LostSessionError(f"the session on MCP server {self.server.name!r} is gone{self._last_words()}")
        try:
            return guarded(f"MCP server {self.server.name!r}", LostSessionError, connection.call, name, arguments)
        except LostSessionError as error:
            words = self._last_words()
            connection.close()
            raise LostSessionError(f"{error}{words}") from error

    def close(self) -> None:
        """Close the session and end the server's process; more than one call does no harm."""
        with self._lock:
            self._closed = True
            self._drop()
        atexit.unregister(self.close)

    def _connected(self) -> "_Connection":
        require("mcp", EXTRA)
        connection = _Connection(self.server)
        try:
            guarded(f"MCP server {self.server.name!r}", LostSessionError, connection.open)
        except LostSessionError as error:
            words = connection.last_words()
            connection.close()
            raise LostSessionError(f"{error}{words}") from error
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _last_words(self) -> str:
        connection = self._connection
        return connection.last_words() if connection is not None else ""


class _Connection:
    """One connection: a task on the background loop that opens it, waits, and closes it again."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._pid = os.getpid()
        self._loop = background_loop()
        self._stop = asyncio.Event()
        self._ready: concurrent.futures.Future[Sequence[Any]] = concurrent.futures.Future()
        self._client: Any = None
        self._opening: asyncio.Task[Any] | None = None
        self._stderr: IO[str] | None = None
        if server.command:
            self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # closed by `close`
        self._task = asyncio.run_coroutine_threadsafe(self._serve(), self._loop)

    @property
    def tools(self) -> Sequence[Any]:
        """The server's tools."""
        return self._ready.result(timeout=0)

    @property
    def alive(self) -> bool:
        """Whether the connection is open, in this process."""
        return not self._task.done() and self._pid == os.getpid()

    def open(self) -> None:
        """Wait until the tools are known."""
        limit = self._server.connect_timeout_s
        either: list[concurrent.futures.Future[Any]] = [self._ready, self._task]
        concurrent.futures.wait(either, timeout=limit, return_when=concurrent.futures.FIRST_COMPLETED)
        if self._ready.done():
            return
        if self._task.done() and (error := self._task.exception()) is not None:
            while isinstance(error, BaseExceptionGroup):  # the SDK's task groups wrap what went wrong
                error = error.exceptions[0]
            raise error
        raise LostSessionError(f"MCP server {self._server.name!r} did not answer within connect_timeout_s={limit:g}")

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool and wait for its answer."""
        mcp = require("mcp", EXTRA)
        types = require("mcp_types", EXTRA)
        limit = self._server.call_timeout_s
        late = f"the tool {name!r} of MCP server {self._server.name!r} did not answer within call_timeout_s={limit:g}"
        asked = asyncio.run_coroutine_threadsafe(
            self._client.call_tool(name, arguments, read_timeout_seconds=limit), self._loop
        )
        # The SDK has a deadline of its own; should it not keep it, or the task end meanwhile, this one holds.
        done, _ = concurrent.futures.wait(
            (asked, self._task), timeout=limit + 1.0, return_when=concurrent.futures.FIRST_COMPLETED
        )
        if asked not in done:
            asked.cancel()
            if self._task in done:
                raise LostSessionError(f"MCP server {self._server.name!r} ended the session")
            raise EnvTimeoutError(late)
        try:
            return asked.result()
        except mcp.MCPError as error:
            if error.code == types.REQUEST_TIMEOUT:
                raise EnvTimeoutError(late) from error
            if error.code == types.CONNECTION_CLOSED:
                raise LostSessionError(f"MCP server {self._server.name!r} closed the connection") from error
            raise ToolError(str(error)) from error

    def close(self) -> None:
        """End the task; the server's process ends with it. A forked child leaves its parent's alone."""
        if self._pid != os.getpid():
            return
        self._loop.call_soon_threadsafe(self._end)
        concurrent.futures.wait((self._task,), timeout=CLOSE_TIMEOUT_S)
        if not self._task.done():
            self._task.cancel()
            _log.warning("MCP server %r did not end within %g s", self._server.name, CLOSE_TIMEOUT_S)
        if self._stderr is not None:
            self._stderr.close()

    def last_words(self) -> str:
        """The end of what the server wrote to stderr, as the end of a sentence; "" for nothing."""
        if self._stderr is None or self._stderr.closed:
            return ""
        self._stderr.seek(0)
        words = self._stderr.read().strip()[-MAX_STDERR_CHARS:]
        return f"; it last wrote: {words}" if words else ""

    def _end(self) -> None:
        self._stop.set()
        if self._opening is not None and not self._ready.done():
            self._opening.cancel()  # it waits for a server that does not answer

    async def _serve(self) -> None:
        self._opening = asyncio.current_task()
        mcp = require("mcp", EXTRA)
        async with AsyncExitStack() as stack:
            # Everything is entered and left by this one task: the SDK's cancel scopes belong to a task.
            client = mcp.Client(await self._transport(stack), cache=None)
            self._client = await stack.enter_async_context(client)
            self._ready.set_result(await self._listed())
            await self._stop.wait()

    async def _transport(self, stack: AsyncExitStack) -> Any:
        server = self._server
        if server.command:
            mcp = require("mcp", EXTRA)
            parameters = mcp.StdioServerParameters(
                command=server.command[0], args=list(server.command[1:]), env=dict(server.env), cwd=server.cwd
            )
            return mcp.stdio_client(parameters, errlog=self._stderr)
        httpx = require("httpx2", EXTRA)
        http = httpx.AsyncClient(
            headers=dict(server.headers),
            timeout=httpx.Timeout(server.connect_timeout_s, read=None),  # each call has its deadline
            trust_env=not is_this_machine(urlsplit(server.url).hostname or ""),  # proxies are not for this machine
        )
        await stack.enter_async_context(http)
        return require("mcp.client.streamable_http", EXTRA).streamable_http_client(server.url, http_client=http)

    async def _listed(self) -> list[Any]:
        tools: list[Any] = []
        cursor = None
        while True:
            page = await self._client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                return tools


_loops: dict[int, asyncio.AbstractEventLoop] = {}
_loops_lock = threading.Lock()


def background_loop() -> asyncio.AbstractEventLoop:
    """The event loop that serves every session of this process, on one daemon thread; a forked process has its own."""
    with _loops_lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="tiltyard-mcp", daemon=True).start()
        return loop
