"""How a session is opened and how long it is waited for."""

import os
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
        ConfigurationError: Without such a class, an argument that a session has not.
    """
    known = {"headers", "max_message_size_mb"}
    if not typed and (unknown := client_kwargs.keys() - known):
        raise ConfigurationError(
            f"client_kwargs without env_name or env_cls takes {', '.join(sorted(known))}, got {sorted(unknown)}"
        )
    headers = tuple((str(name), str(value)) for name, value in (client_kwargs.get("headers") or {}).items())
    megabytes = client_kwargs.get("max_message_size_mb")
    size = bounds.max_message_bytes if megabytes is None else int(megabytes * 1024 * 1024)
    token = bounds.token or os.environ.get("OPENENV_TOKEN")
    return replace(bounds, headers=headers, max_message_bytes=size, token=token)
