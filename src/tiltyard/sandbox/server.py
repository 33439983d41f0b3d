"""`LocalSandboxServer`: sandboxes on this machine, behind the API that E2B's SDK speaks."""

import asyncio
import atexit
import os
import re
import secrets
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tiltyard._boundary import shown
from tiltyard._optional import require
from tiltyard.errors import ConfigurationError
from tiltyard.sandbox.box_model import Template
from tiltyard.sandbox.isolation import Isolation, probe

BASE = Template(name="base", root=None)
"""The template that every server has: the programs of this machine, read-only, and a home of its own."""

KEY = re.compile(r"[!-~]+")
"""What a header carries as it is."""

WARM = 2
MAX_SANDBOXES = 256


class LocalSandboxServer:
    """A server of sandboxes on a thread of its own; leaving it as a context manager ends it and all of them.

    Attributes:
        url: Where it is: the SDK's `api_url` and its `sandbox_url`.
        api_key: What clients must send.
        isolation: What keeps a sandbox apart from this machine.
        templates: What sandboxes are made from, by name.
    """

    def __init__(
        self,
        templates: Sequence[Template] = (),
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        api_key: str | None = None,
        warm: int = WARM,
        max_sandboxes: int = MAX_SANDBOXES,
        unsafe: bool = False,
    ) -> None:
        """Start it.

        Args:
            templates: What sandboxes are made from; a template `base` is there besides, unless one has that name.
            host: What to bind to. It is plain HTTP: beyond this machine put a proxy with TLS before it.
            port: The port; 0 takes a free one.
            api_key: None makes a random one. It is sent as a header: ASCII without spaces.
            warm: How many sandboxes of each template are kept ready.
            max_sandboxes: How many there may be at a time.
            unsafe: Where this machine has no isolation, run sandboxes without: what runs in them can then do all
                that this process can.

        Raises:
            ConfigurationError: An argument cannot be, this machine has no isolation, a template cannot be used, or the
                address cannot be bound.
            MissingExtraError: The extra `sandbox` is not installed.
        """
        for module in ("starlette", "uvicorn", "python_multipart"):
            require(module, "sandbox")
        from tiltyard.sandbox.serving import Serving  # noqa: PLC0415  # it needs the extra

        _check(host, port, api_key)
        _check_count("warm", warm, 0)
        _check_count("max_sandboxes", max_sandboxes, 1)
        self.templates = _by_name(templates)
        self.isolation: Isolation = probe(unsafe)
        self.api_key = api_key or f"e2b_{secrets.token_hex(20)}"
        self._pid = os.getpid()
        options = {"key": self.api_key, "warm": warm, "max_sandboxes": max_sandboxes}
        self._serving = Serving(self.isolation, self.templates, **options)
        self.url = self._serving.bind(host, port)
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=asyncio.run, args=(self._serving.run(),), name="tiltyard-sandboxes")
        self._thread.daemon = True
        self._thread.start()
        atexit.register(self.close)
        try:
            self._serving.ready.result()
        except BaseException:
            self.close()
            raise

    @property
    def live(self) -> int:
        """How many sandboxes there are now, without those that are kept ready."""
        return self._serving.live

    def close(self) -> None:
        """End every sandbox and the server; the second call does nothing, and so does a call in a forked child."""
        if os.getpid() != self._pid:
            return
        atexit.unregister(self.close)
        self._serving.stop()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _by_name(templates: Sequence[Template]) -> dict[str, Template]:
    if isinstance(templates, str) or not isinstance(templates, Sequence):
        raise ConfigurationError(f"templates must be a list of Template, got {shown(templates)}")
    for template in templates:
        if not isinstance(template, Template):
            raise ConfigurationError(f"templates must be Template(name, …), one is {shown(template)}")
    named = {template.name: template for template in templates}
    if len(named) < len(templates):
        raise ConfigurationError(f"two templates have one name; got {[template.name for template in templates]}")
    named.setdefault(BASE.name, BASE)
    return named


def _check(host: str, port: int, api_key: str | None) -> None:
    if not isinstance(host, str) or not host or "\0" in host:
        raise ConfigurationError(f"host must be an address such as 127.0.0.1, got {host!r}")
    if isinstance(port, bool) or not isinstance(port, int):
        raise ConfigurationError(f"port must be a whole number, got {port!r}")
    if api_key is not None and (not isinstance(api_key, str) or not KEY.fullmatch(api_key)):
        raise ConfigurationError("api_key must be ASCII characters without spaces; leave it out for a random one")


def _check_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{name} must be a whole number >= {least}, got {value!r}")


_shared: LocalSandboxServer | None = None
_lock = threading.Lock()


def shared_server() -> LocalSandboxServer:
    """The one server of this process, started when it is first asked for and closed when the process ends.

    A forked child gets one of its own when it asks.

    Raises:
        ConfigurationError: As `LocalSandboxServer`.
        MissingExtraError: As `LocalSandboxServer`.
    """
    global _shared  # noqa: PLW0603  # one a process is the point
    with _lock:
        if _shared is None:
            _shared = LocalSandboxServer()
        return _shared


def _forget() -> None:
    """In a forked child: the parent's server has no thread here, and its lock may be held for ever."""
    global _shared, _lock  # as above
    _shared, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
