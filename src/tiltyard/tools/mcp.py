"""The tools of an MCP server, as a `ToolManager`."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from tiltyard.errors import ConfigurationError, ToolError
from tiltyard.tools.manager import ToolManager
from tiltyard.tools.mcp_content import content_text
from tiltyard.tools.mcp_server import McpServer
from tiltyard.tools.mcp_session import McpSession
from tiltyard.types import ToolSchema

__all__ = ["McpServer", "McpTool", "McpTools", "mcp_factory", "mcp_tools"]


class LeaseKeeper(Protocol):
    """The part of `Leases` that a session is registered with."""

    def acquire(self, name: str, release: Callable[[], object], *, held: Callable[[], bool] | None = None) -> object:
        """Register something that is held from now on."""
        ...


class McpTool:
    """One tool of a session.

    Attributes:
        parallel: Its calls may run at the same time as others of a turn.
        source: The session, where episodes cannot share it; None where they can.
    """

    def __init__(self, session: McpSession, tool: Any, *, parallel: bool, shared: bool) -> None:
        self.parallel = parallel
        self.source = None if shared else session
        self._session = session
        self._renews = shared
        self._schema: ToolSchema = {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema},
        }

    def __call__(self, tool_name: str, arguments: dict[str, Any]) -> str:
        """Call the tool on the server; what is not text in its result leaves a line that says what it was.

        Raises:
            ToolError: The tool, or the server, said that the call failed.
            EnvTimeoutError: There was no answer in time.
            LostSessionError: The session is gone.
        """
        if self._renews:  # whoever shares a session has no state in it that could have been lost
            self._session.renew()
        result = self._session.call(tool_name, arguments)
        text = content_text(result.content, result.structured_content)
        if result.is_error:
            raise ToolError(text or "the tool failed without saying why")
        return text

    def tool_info(self) -> ToolSchema:
        """The tool's name, description and input schema, as the server gave them."""
        return self._schema


class McpTools(ToolManager):
    """The tools of one session. A context manager; the session ends with `close`, or with the process."""

    def __init__(self, session: McpSession, tools: Sequence[McpTool]) -> None:
        super().__init__(tools)
        self._session = session

    @property
    def held(self) -> bool:
        """Whether the session is open."""
        return self._session.held

    def close(self) -> None:
        """Close the session; more than one call does no harm."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def mcp_tools(
    server: str | Sequence[str] | McpServer,
    *,
    only: Sequence[str] | None = None,
    parallel: bool = False,
    shared: bool = False,
    leases: LeaseKeeper | None = None,
) -> McpTools:
    """Open a session on an MCP server and fill a `ToolManager` with its tools, under their own names.

    Episodes that run at the same time need a session each, as a server may keep state in it: give the
    rollout `mcp_factory(server)`. With `shared=True` they may have this one.

    Args:
        server: A URL (`"http://host:8000/mcp"`), a command that is started and spoken to over its stdin and
            stdout (`["python", "server.py"]`), or a `McpServer` with time-outs, environment and headers.
        only: The names of the tools to take; None takes all.
        parallel: The calls of one turn may run at the same time.
        shared: Episodes that run at the same time may share the session: it keeps no state of theirs. Who
            opened it closes it.
        leases: Where the session is registered, so that it is released and counted with the run's others.

    Raises:
        MissingExtraError: The `mcp` extra is not installed.
        ConfigurationError: The server is neither a URL nor a command, `only` is no list, the server has no tool
            of a name in it, or a tool's schema is not valid.
        LostSessionError: The server cannot be reached, or does not answer in time.
    """
    _check_only(only)
    session = McpSession(McpServer.of(server))
    try:
        names = [tool.name for tool in session.tools]
        if unknown := sorted(set(only or ()) - set(names)):
            raise ConfigurationError(
                f"MCP server {session.server.name!r} has no tool {unknown[0]!r}; it has: {', '.join(names) or 'none'}"
            )
        chosen = [tool for tool in session.tools if only is None or tool.name in only]
        manager = McpTools(session, [McpTool(session, tool, parallel=parallel, shared=shared) for tool in chosen])
    except ConfigurationError:
        session.close()
        raise
    if leases is not None:
        leases.acquire(f"session on MCP server {session.server.name!r}", manager.close, held=lambda: manager.held)
    return manager


def mcp_factory(
    server: str | Sequence[str] | McpServer,
    *,
    only: Sequence[str] | None = None,
    parallel: bool = False,
    leases: LeaseKeeper | None = None,
) -> Callable[[], McpTools]:
    """A factory for rollouts: each call opens a session of its own; see `mcp_tools`.

    Raises:
        ConfigurationError: The server is neither a URL nor a command, or `only` is no list.
    """
    _check_only(only)
    known = McpServer.of(server)
    return lambda: mcp_tools(known, only=only, parallel=parallel, leases=leases)


def _check_only(only: Sequence[str] | None) -> None:
    if isinstance(only, str):
        raise ConfigurationError(f"only is a list of the names of tools, got {only!r}; write only=[{only!r}]")
