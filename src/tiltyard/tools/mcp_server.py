"""How an MCP server is reached."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tiltyard.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class McpServer:
    """How an MCP server is reached: a command that is started for each session, or a URL.

    Attributes:
        command: The program and its arguments, spoken to over stdin and stdout.
        url: The address of a server that speaks streamable HTTP.
        env: Environment variables of the command, besides the few that the SDK passes on (`PATH`, `HOME`,
            …): nothing else of this process's environment reaches it.
        cwd: The command's working folder; None is this process's.
        headers: Sent with each request to the URL.
        connect_timeout_s: How long it may take until the tools are known.
        call_timeout_s: How long one call may take.
    """

    command: tuple[str, ...] = ()
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    connect_timeout_s: float = 30.0
    call_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ConfigurationError(
                f"an MCP server is a command or a url, exactly one of them, got command={self.command!r} and "
                f"url={self.url!r}"
            )
        if self.url and urlsplit(self.url).scheme not in ("http", "https"):
            raise ConfigurationError(
                f"the url of an MCP server must begin with http:// or https://, got {self.url!r}; give a command as a "
                'list, e.g. ["python", "server.py"]'
            )
        if (self.headers and not self.url) or ((self.env or self.cwd) and not self.command):
            raise ConfigurationError("headers go with a url, env and cwd with a command")
        for name in ("connect_timeout_s", "call_timeout_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value > 0:
                raise ConfigurationError(f"{name} must be > 0, got {value!r}")
        for name in ("env", "headers"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not _texts([*value, *value.values()]):
                raise ConfigurationError(f"{name} must be a dict of texts, got {value!r}")
        if not _texts(self.command):
            raise ConfigurationError(f"the command of an MCP server must be texts, got {self.command!r}")

    @classmethod
    def of(cls, server: "str | Sequence[str] | McpServer") -> "McpServer":
        """A server from its URL (a string), its command (a sequence of strings), or as it is.

        Raises:
            ConfigurationError: It is none of these.
        """
        if isinstance(server, McpServer):
            return server
        if isinstance(server, str):
            return cls(url=server)
        if not isinstance(server, Sequence):
            raise ConfigurationError(
                "an MCP server is a URL, a command as a list, or a McpServer(command=… or url=…, …), "
                f"got {type(server).__name__} {server!r}"
            )
        return cls(command=tuple(server))

    @property
    def name(self) -> str:
        """Names the server in errors."""
        return self.url or " ".join(self.command)


def _texts(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
