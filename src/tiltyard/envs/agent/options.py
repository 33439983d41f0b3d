"""What an `AgentEnv` is given, checked before anything is asked of a server."""

import os
import re
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
        url = api_url or os.environ.get("E2B_API_URL") or None
        if template is not None and (not isinstance(template, str) or not template.strip()):
            raise ConfigurationError(f"template must be the name or id of a template, got {template!r}")
        _check_key(api_key)
        if url is None:
            return cls(None, api_key, template, None)
        hostname = _hostname(url)
        if template is None:
            raise ConfigurationError(
                f"template is required with a server of your own ({url}): the name of a template that was built on it; "
                "without api_url and E2B_API_URL a local server with a default template is started"
            )
        # The public cloud has one host for the control plane and another for each sandbox; other servers have one URL.
        hosted = hostname.startswith("api.") and hostname.endswith((".e2b.app", ".e2b.dev"))
        # What the variable says belongs to the server that the variables name, not to another one.
        named = None if api_url else os.environ.get("E2B_SANDBOX_URL")
        data_url = named or (None if hosted else url.rstrip("/"))
        key = api_key or os.environ.get("E2B_API_KEY") or "dummy"
        _check_key(key)
        return cls(url.rstrip("/"), key, template, data_url)


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
        if not isinstance(self.refresh, bool):
            raise ConfigurationError(f"refresh_timeout must be true or false, got {self.refresh!r}")
        for command in self.setup_commands:
            if not isinstance(command, str) or not command.strip() or "\0" in command:
                raise ConfigurationError(f"a setup command must be a line for a shell, got {command!r}")
        object.__setattr__(self, "envs", _texts("sandbox_envs", self.envs))
        object.__setattr__(self, "metadata", _texts("metadata", self.metadata))
        for name in self.envs:
            if "=" in name:
                raise ConfigurationError(f"sandbox_envs has {name!r}, which cannot name a variable")
        if ours := [key for key in self.metadata if key.startswith(RESERVED)]:
            raise ConfigurationError(f"metadata keys that begin with {RESERVED!r} are taken, got {ours}")


def commands(value: Sequence[str] | str | None) -> tuple[str, ...]:
    """Setup commands as a tuple; one text is one command.

    Raises:
        ConfigurationError: It is something else.
    """
    listed = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(listed, Sequence):
        raise ConfigurationError(f"setup_commands must be a list of lines for a shell, got {shown(value)}")
    return tuple(listed)


def checked_run_id(run_id: str | None) -> str | None:
    """The name of a run, or None.

    Raises:
        ConfigurationError: It names nothing that could be asked for.
    """
    if run_id is not None and (not isinstance(run_id, str) or not run_id.strip() or "\0" in run_id):
        raise ConfigurationError(f"run_id must be a text that names the run, got {run_id!r}")
    return run_id


def _hostname(url: Any) -> str:
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        port_is_one = parts is not None and parts.port != 0  # reading it raises where it is no port
    except ValueError:
        parts, port_is_one = None, False
    hostname = parts.hostname if parts is not None and parts.scheme in ("http", "https") and port_is_one else None
    if not hostname or re.search(r"\s", url):
        raise ConfigurationError(f"api_url must be http://host:port or https://…, got {url!r}")
    return hostname


def _check_key(key: Any) -> None:
    """See that a header can carry it; the message does not tell it."""
    if key is not None and (not isinstance(key, str) or not re.fullmatch(r"[!-~]*", key)):
        raise ConfigurationError(
            "api_key (or E2B_API_KEY) must be ASCII characters without spaces or line ends; it is sent as a header"
        )


def _positive(name: str, value: Any, *, whole: bool = False) -> None:
    kind = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value <= MAX_TIMEOUT_S:
        number = "a whole number of seconds" if whole else "a number of seconds"
        raise ConfigurationError(f"{name} must be {number} > 0 and <= {MAX_TIMEOUT_S}, got {value!r}")


def _texts(name: str, table: Any) -> dict[str, str]:
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"{name} must be a mapping of text to text, got {shown(table)}")
    for key, value in table.items():
        if not isinstance(key, str) or not isinstance(value, str) or not key or "\0" in key + value:
            raise ConfigurationError(f"{name} must map text to text without NUL, got {shown(key)}: {shown(value)}")
    return dict(table)
