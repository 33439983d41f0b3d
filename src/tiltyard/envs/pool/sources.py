"""The backend that a name stands for."""

from typing import TYPE_CHECKING, Any, Literal

from tiltyard.envs.pool.processes import Processes
from tiltyard.envs.pool.workers import Backend
from tiltyard.errors import ConfigurationError

if TYPE_CHECKING:
    from tiltyard.envs.pool.ray_session import RayOptions

BackendName = Literal["process", "ray"]


def backend_of(name: Any, ray: "RayOptions | None") -> Backend:
    """The backend of this name.

    Raises:
        ConfigurationError: There is none, or the cluster cannot be reached.
        MissingExtraError: Ray is not installed.
    """
    if name == "process":
        if ray is not None:
            raise ConfigurationError("ray= says which cluster to use; with it write backend='ray'")
        return Processes()
    if name != "ray":
        raise ConfigurationError(f"backend must be 'process' or 'ray', got {name!r}")
    from tiltyard.envs.pool.ray_session import RayOptions  # noqa: PLC0415  # only who asks for Ray has it installed
    from tiltyard.envs.pool.ray_workers import RayWorkers  # noqa: PLC0415  # as above

    return RayWorkers(ray or RayOptions())
