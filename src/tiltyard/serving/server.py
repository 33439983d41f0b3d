"""`resolve_env`: any environment behind a URL."""

import atexit
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from tiltyard._optional import require
from tiltyard.errors import ConfigurationError
from tiltyard.serving.desk import Desk, check_token
from tiltyard.serving.making import Described, EnvMaker, EnvSpec
from tiltyard.serving.place import LocalPlace, Place, ServerReport
from tiltyard.serving.workers import WorkerPlace

MAX_CONCURRENT_ENVS = 64
CALL_TIMEOUT_S = 300.0


class EnvServer:
    """A server that runs; leaving it as a context manager stops it, and so does the end of the process.

    Attributes:
        url: Where it is.
    """

    def __init__(self, desk: Desk, place: Place) -> None:
        self.url = desk.url
        self._desk = desk
        self._place = place
        self._report: ServerReport | None = None
        atexit.register(self.stop)
        desk.start()

    @property
    def active_sessions(self) -> int:
        """How many sessions have an environment now."""
        return self._place.active

    @property
    def max_sessions(self) -> int:
        """How many can have one at a time: worker processes x `max_concurrent_envs`."""
        return self._place.capacity

    def report(self) -> ServerReport:
        """What became of the sessions so far."""
        return self._report or self._place.report()

    def stop(self, timeout_s: float = 10.0) -> ServerReport:
        """End every session, close every environment and free the port; the second call does nothing.

        Args:
            timeout_s: How long environments that are in a call, or that hang, are waited for.

        Returns:
            What became of the sessions; `leaked` counts the environments that were not closed.
        """
        if self._report is None:
            atexit.unregister(self.stop)
            self._desk.stop()
            self._place.stop(timeout_s)
            self._report = self._place.report()
        return self._report

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def resolve_env(  # noqa: PLR0913  # the contract's arguments, and what a server needs besides
    spec: str | Callable[..., Any],
    env_config: Mapping[str, Any] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    max_concurrent_envs: int | None = None,
    workers: int = 1,
    token: str | None = None,
    call_timeout_s: float = CALL_TIMEOUT_S,
    action_cls: Any = None,
) -> tuple[str, EnvServer]:
    """Serve an environment over the OpenEnv protocol: `(url, server)`; each session has an environment of its own.

    One environment is made and closed before the server starts, so that what is wrong with it is raised here.

    Args:
        spec: `module:attr`, `path.py:attr`, or a class or function that makes an environment: a text environment, an
            `Env`, a `TurnEnv`, or an `Environment` of the openenv package.
        env_config: Its keyword arguments; `system_prompt` is set on the environment and not passed.
        host: What to bind to. Other addresses than those of this machine alone need a token.
        port: The port; 0 takes a free one.
        max_concurrent_envs: Sessions at a time in each worker; None takes 64, or 1 for an Environment that does not
            declare concurrent sessions.
        workers: 1 serves from threads of this process; more serve from as many processes, and `spec` must be text.
        token: What clients must send as `Authorization: Bearer …`.
        call_timeout_s: How long the environment's construction, a reset or a step may take.
        action_cls: The class of an OpenEnv environment's actions, where it cannot be found; itself or `module:Class`.

    Raises:
        ConfigurationError: The environment cannot be made or served so, or the address cannot be bound.
        EnvError: The environment's own code failed.
        MissingExtraError: The extra `serve` is not installed.
    """
    for module in ("websockets", "orjson"):
        require(module, "serve")
    check_token(host, token)
    _check_count("workers", workers)
    if workers > 1 and not isinstance(spec, str):
        raise ConfigurationError(f"worker processes load the environment by name: give 'module:attr', got {spec!r}")
    if not isinstance(call_timeout_s, int | float) or not call_timeout_s > 0:
        raise ConfigurationError(f"call_timeout_s must be a number > 0, got {call_timeout_s!r}")
    if not isinstance(env_config, Mapping | None):
        raise ConfigurationError(f"env_config must be a dict of keyword arguments, got {env_config!r}")
    env = EnvSpec(spec, dict(env_config or {}), action_cls)
    make = EnvMaker(env)
    described = make.describe()
    capacity = _capacity(described, max_concurrent_envs)
    place: Place
    if workers == 1:
        place = LocalPlace(make, capacity, call_timeout_s)
    else:
        place = WorkerPlace(env, workers, capacity, call_timeout_s)
    try:
        server = EnvServer(Desk(host, port, token, described, place), place)
    except BaseException:
        place.stop(0.0)
        raise
    return server.url, server


def _capacity(described: Described, asked: int | None) -> int:
    if asked is None:
        return MAX_CONCURRENT_ENVS if described.concurrent else 1
    _check_count("max_concurrent_envs", asked)
    if asked > 1 and not described.concurrent:
        raise ConfigurationError(
            f"{described.name} does not declare concurrent sessions, so max_concurrent_envs={asked} cannot be. Serve "
            "it with max_concurrent_envs=1 and more workers; or, where two of them in one process do not disturb each "
            "other, subclass it with SUPPORTS_CONCURRENT_SESSIONS = True"
        )
    return asked


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name} must be >= 1, got {value!r}")
