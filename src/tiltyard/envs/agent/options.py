"""What an `AgentEnv` is given, checked before anything is asked of a server."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tiltyard._boundary import shown
from tiltyard.errors import ConfigurationError

RESERVED = "tiltyard_"
"""Metadata keys with this beginning are ours: they say whose a sandbox is."""

MAX_TIMEOUT_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class Place:
    """Where sandboxes are made.

    Attributes:
        api_url: The server; None is the local one that this process starts and shares.
        api_key: Sent with each request; None is the local server's own.
        template: What a sandbox is made from; None is the local server's default.
        data_url: Where commands and files of all sandboxes go; None leaves it to the SDK.
    """

    api_url: str | None
    api_key: str | None
    template: str | None
    data_url: str | None

    @classmethod
    def of(cls, template: str | None, api_url: str | None, api_key: str | None) -> "Place":
        """The place that arguments and the variables E2B_API_URL, E2B_API_KEY and E2B_SANDBOX_URL name.

        Raises:
            ConfigurationError: The URL is none, or a server is named and no template.
        """
        url = api_url or os.environ.get("E2B_API_URL")
        if template is not None and (not isinstance(template, str) or not template.strip()):
            raise ConfigurationError(f"template must be the name or id of a template, got {template!r}")
        if url is None:
            return cls(None, api_key, template, None)
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"api_url must be http://host:port or https://…, got {url!r}")
        if template is None:
            raise ConfigurationError(
                f"template is required with a server of your own ({url}): the name of a template that was built on it; "
                "without api_url and E2B_API_URL a local server with a default template is started"
            )
        # The public cloud has one host for the control plane and another for each sandbox; other servers have one URL.
        hosted = parts.hostname.startswith("api.") and parts.hostname.endswith((".e2b.app", ".e2b.dev"))
        # What the variable says belongs to the server that the variables name, not to another one.
        named = None if api_url else os.environ.get("E2B_SANDBOX_URL")
        data_url = named or (None if hosted else url.rstrip("/"))
        return cls(url.rstrip("/"), api_key or os.environ.get("E2B_API_KEY") or "dummy", template, data_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """How one sandbox is made and how long things in it may take.

    Attributes:
        timeout_s: How long the server keeps a sandbox that nobody says is wanted.
        command_timeout_s: How long one command may take; what the model asks for is cut to it.
        setup_commands: Run in order after each creation.
        envs: Environment variables of the sandbox.
        metadata: The caller's own, seen in the server's list.
        refresh: Whether the server is told, also while the model thinks, that the sandbox is still wanted.
        start_timeout_s: How long a server that is full, restarting or slow is tried for.
    """

    timeout_s: int = 300
    command_timeout_s: float = 120
    setup_commands: tuple[str, ...] = ()
    envs: Mapping[str, str]
    metadata: Mapping[str, str]
    refresh: bool = True
    start_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        _positive("sandbox_timeout", self.timeout_s, whole=True)
        _positive("command_timeout", self.command_timeout_s)
        _positive("start_timeout_s", self.start_timeout_s)
        for command in self.setup_commands:
            if not isinstance(command, str) or not command.strip() or "\0" in command:
                raise ConfigurationError(f"a setup command must be a line for a shell, got {command!r}")
        for name, table in (("sandbox_envs", self.envs), ("metadata", self.metadata)):
            _texts(name, table)
        if ours := [key for key in self.metadata if key.startswith(RESERVED)]:
            raise ConfigurationError(f"metadata keys that begin with {RESERVED!r} are taken, got {ours}")


def commands(value: Sequence[str] | str | None) -> tuple[str, ...]:
    """Setup commands as a tuple; one text is one command."""
    return (value,) if isinstance(value, str) else tuple(value or ())


def _positive(name: str, value: Any, *, whole: bool = False) -> None:
    kind = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value <= MAX_TIMEOUT_S:
        number = "a whole number of seconds" if whole else "a number of seconds"
        raise ConfigurationError(f"{name} must be {number} > 0 and <= {MAX_TIMEOUT_S}, got {value!r}")


def _texts(name: str, table: Any) -> None:
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"{name} must be a mapping of text to text, got {shown(table)}")
    for key, value in table.items():
        if not isinstance(key, str) or not isinstance(value, str) or not key or "\0" in key + value:
            raise ConfigurationError(f"{name} must map text to text without NUL, got {shown(key)}: {shown(value)}")
