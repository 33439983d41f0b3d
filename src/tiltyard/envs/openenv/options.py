"""How a session is opened and how long it is waited for."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tiltyard.errors import ConfigurationError

MAX_MESSAGE_BYTES = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Bounds of one session.

    Attributes:
        connect_timeout_s: How long a server that refuses or is restarting is tried for.
        message_timeout_s: How long one answer may take, the environment's construction included; None = no bound.
        capacity_timeout_s: How long a full server is waited for.
        max_message_bytes: The largest answer that is taken.
        token: The bearer token that the server asks for; None sends none.
        headers: Further headers of the request that opens the session.
    """

    connect_timeout_s: float = 10.0
    message_timeout_s: float | None = 120.0
    capacity_timeout_s: float = 30.0
    max_message_bytes: int = MAX_MESSAGE_BYTES
    token: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "message_timeout_s", "capacity_timeout_s", "max_message_bytes"):
            value: Any = getattr(self, name)
            if value is None and name == "message_timeout_s":
                continue
            least = "zero" if name == "capacity_timeout_s" else "more"
            sound = isinstance(value, int | float) and (value > 0 or (value == 0 and least == "zero"))
            if not sound:
                raise ConfigurationError(f"{name} must be a number {'>=' if least == 'zero' else '>'} 0, got {value!r}")


def session_options(bounds: SessionOptions, client_kwargs: dict[str, Any], *, typed: bool) -> SessionOptions:
    """The bounds with what the arguments of an openenv client say about a session.

    Args:
        bounds: The caller's own.
        client_kwargs: What the caller has for the client class.
        typed: Whether there is such a class, which takes the rest.

    Raises:
        ConfigurationError: An argument that a session cannot have; without such a class, one that it does not know.
    """
    known = {"headers", "max_message_size_mb"}
    if not typed and (unknown := client_kwargs.keys() - known):
        raise ConfigurationError(
            f"client_kwargs without env_name or env_cls takes {', '.join(sorted(known))}, got {sorted(unknown)}"
        )
    given, megabytes = client_kwargs.get("headers") or {}, client_kwargs.get("max_message_size_mb")
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"client_kwargs['headers'] must be a dict, got {given!r}")
    if megabytes is not None and not (isinstance(megabytes, int | float) and megabytes > 0):
        raise ConfigurationError(f"client_kwargs['max_message_size_mb'] must be a number > 0, got {megabytes!r}")
    headers = tuple((str(name), str(value)) for name, value in given.items())
    size = bounds.max_message_bytes if megabytes is None else int(megabytes * 1024 * 1024)
    token = bounds.token or os.environ.get("OPENENV_TOKEN")
    return replace(bounds, headers=headers, max_message_bytes=size, token=token)
