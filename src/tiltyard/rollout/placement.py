"""Where the environments of a rollout live: in this process, in worker processes, or on a Ray cluster."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tiltyard.envs.turns import Turns, as_turns
from tiltyard.errors import ConfigurationError
from tiltyard.rollout.harness import RolloutHarness
from tiltyard.rollout.limits import Limits

if TYPE_CHECKING:
    from tiltyard.envs.pool.ray_session import RayOptions


@dataclass(frozen=True, slots=True)
class Placement:
    """Where environments live, or whole episodes where a server samples.

    Attributes:
        backend: `"local"` is this process, `"process"` worker processes of this machine, `"ray"` a Ray cluster.
        workers: How many workers; None takes one for each processor, or as many as the cluster has room for.
        ray: Which cluster, and what of it each worker needs; None uses the one that this process is connected to, and
            otherwise starts one on this machine.
    """

    backend: Literal["local", "process", "ray"] = "local"
    workers: int | None = None
    ray: "RayOptions | None" = None

    def __post_init__(self) -> None:
        if self.backend not in ("local", "process", "ray"):
            raise ConfigurationError(f"backend must be 'local', 'process' or 'ray', got {self.backend!r}")
        if self.workers is not None and (self.backend == "local" or self.workers < 1):
            wanted = "None with backend='local', which has no workers" if self.backend == "local" else ">= 1 or None"
            raise ConfigurationError(f"workers must be {wanted}, got {self.workers!r}")
        if self.ray is not None and self.backend != "ray":
            raise ConfigurationError(f"ray= says which cluster to use; it is for backend='ray', got {self.backend!r}")

    @property
    def remote(self) -> bool:
        """True when there are workers."""
        return self.backend != "local"

    @property
    def pool_backend(self) -> Literal["process", "ray"]:
        """The name of the pool's backend.

        Raises:
            ConfigurationError: There are no workers.
        """
        if self.backend == "local":
            raise ConfigurationError("backend='local' has no workers; write 'process' or 'ray'")
        return self.backend

    def limits(self, limits: Limits) -> Limits:
        """The bounds that a driver of this process keeps: where environments live on workers, those keep theirs."""
        return replace(limits, step_timeout_s=None) if self.remote else limits


HERE = Placement()
"""In this process."""

IN_PROCESSES = Placement("process")
"""In worker processes, one for each processor."""


@dataclass(frozen=True, slots=True)
class TurnsMaker:
    """Makes the turns of an environment in a worker, so that a whole turn is one call to it.

    Attributes:
        factory: Makes the environment, or a `RolloutHarness` around one.
    """

    factory: Callable[[], Any]

    @property
    def own_process(self) -> bool:
        """Whether each environment asks for a process of its own."""
        return getattr(self.factory, "own_process", False) is True

    def __call__(self) -> Turns:
        """A new environment, as turns."""
        env = self.factory()
        return env.turns if isinstance(env, RolloutHarness) else as_turns(env)
