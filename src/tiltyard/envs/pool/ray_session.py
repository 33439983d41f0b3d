"""A Ray cluster, reached or started: what it has, and actors on it. What runs on Ray is built on this."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from tiltyard._boundary import guarded
from tiltyard._optional import require
from tiltyard.errors import ConfigurationError, EnvError

CONTROL = "control"
"""The concurrency group of an actor's short calls: they are never behind those that wait for an environment."""

LOOPBACK = ("127.", "localhost")
"""How addresses begin that only this machine has."""

NEW = "local"
"""What Ray calls a cluster that is to be started on this machine."""

_starting = threading.Lock()


@dataclass(frozen=True, slots=True)
class RayOptions:
    """Which cluster, and what of it each worker needs.

    Attributes:
        address: Of a cluster that is running, such as `"auto"` or `"10.0.0.1:6379"`; None uses the one that this
            process is connected to, or that the variable `RAY_ADDRESS` names as it does in the jobs of a cluster, and
            otherwise starts one on this machine that only this machine can reach.
        num_cpus: How many CPUs a worker is counted for; 0 counts none, since environments mostly wait.
        resources: Further resources of a worker, e.g. `{"GPU": 1}`.
        placement: `"SPREAD"` puts workers on different machines where it can, `"PACK"` on as few as it can.
        runtime_env: What the workers' processes need to import the environments; see Ray.
    """

    address: str | None = None
    num_cpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    placement: Literal["SPREAD", "PACK"] = "SPREAD"
    runtime_env: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.placement not in ("SPREAD", "PACK"):
            raise ConfigurationError(f"placement must be 'SPREAD' or 'PACK', got {self.placement!r}")
        for name, amount in self.needs.items():
            if not isinstance(amount, int | float) or isinstance(amount, bool) or amount < 0:
                raise ConfigurationError(f"a worker's {name} must be a number >= 0, got {amount!r}")

    @property
    def needs(self) -> dict[str, float]:
        """What one worker needs, by resource; without those that it needs none of."""
        every = {"CPU": self.num_cpus, **self.resources}
        return {name: amount for name, amount in every.items() if amount != 0}


class RaySession:
    """This process's connection to a cluster, and the actors that are made through it.

    A cluster that was started here lives until the process ends: a second pool finds it running.
    """

    def __init__(self, options: RayOptions) -> None:
        """Connect, and start a cluster where there is none to connect to.

        Raises:
            ConfigurationError: The cluster cannot be reached.
            MissingExtraError: Ray is not installed.
        """
        self.ray: Any = require("ray", "ray")
        self.options = options
        with _starting:
            if not self.ray.is_initialized():
                self._connect()

    def check(self, workers: int) -> None:
        """Whether so many workers can be had: Ray itself waits for ever for what there is not.

        Raises:
            ConfigurationError: No machine is big enough for one of them, or all together are not for all of them.
        """
        nodes = self.nodes()
        for name, amount in self.options.needs.items():
            have = [node.get(name, 0.0) for node in nodes]
            if amount > max(have, default=0.0):
                raise ConfigurationError(
                    f"a worker needs {amount:g} {name}, and the biggest of the cluster's {len(nodes)} machines has "
                    f"{max(have, default=0.0):g}"
                )
            if amount * workers > sum(have):
                raise ConfigurationError(
                    f"{workers} workers of {amount:g} {name} need {amount * workers:g}, and the cluster has "
                    f"{sum(have):g}; ask for fewer workers, or for less for each"
                )
        if not any(all(node.get(name, 0.0) >= amount for name, amount in self.options.needs.items()) for node in nodes):
            raise ConfigurationError(f"no machine of the cluster has all that a worker needs: {self.options.needs}")

    def nodes(self) -> list[dict[str, float]]:
        """What each machine of the cluster has, whether it is in use or not."""
        listed = guarded("asking the cluster", EnvError, self.ray.nodes)
        return [node["Resources"] for node in listed if node["Alive"]]

    @property
    def at_hand(self) -> int:
        """How many workers there is room for, by what they need; by the CPUs where they are counted for none."""
        needs = self.options.needs or {"CPU": 1.0}
        total: dict[str, float] = {}
        for node in self.nodes():
            for name, amount in node.items():
                total[name] = total.get(name, 0.0) + amount
        return max(1, min(int(total.get(name, 0.0) // amount) for name, amount in needs.items()))

    def actor(self, cls: type, *, threads: int, arguments: Sequence[Any]) -> Any:
        """An actor of this class, which is never started again.

        Nor is a call of it ever made again: both would go on with a fresh environment as if nothing had happened.

        Args:
            cls: Its methods block; `CONTROL` is the group of those that must not wait for others.
            threads: How many calls run at one time.
            arguments: Its constructor's.
        """
        needs = dict(self.options.needs)
        options: dict[str, Any] = {
            "num_cpus": needs.pop("CPU", 0),
            "num_gpus": needs.pop("GPU", 0),
            "resources": needs,
            "max_concurrency": threads,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD" if self.options.placement == "SPREAD" else "DEFAULT",
        }
        if self.options.runtime_env is not None:
            options["runtime_env"] = dict(self.options.runtime_env)
        remote = self.ray.remote(concurrency_groups={CONTROL: 2})(cls).options(**options)
        return guarded("making an actor", EnvError, remote.remote, *arguments)

    def end_process(self, node: str, pid: int) -> None:
        """Kill a process of an actor, whatever it does; waits for nothing.

        Args:
            node: Its machine in the cluster.
            pid: Its number there.
        """
        if node == self.ray.get_runtime_context().get_node_id():
            _end(pid)
            return
        there = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        self.ray.remote(_end).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(pid)

    def _connect(self) -> None:
        told: dict[str, Any] = {"log_to_driver": True, "logging_level": "warning", "include_dashboard": False}
        address = self.options.address or os.environ.get("RAY_ADDRESS") or NEW
        if address == NEW:  # said, since Ray else looks for the cluster that ran here last, and waits for a dead one
            with only_this_machine():
                guarded("starting Ray on this machine", EnvError, self.ray.init, address=NEW, **told)
            return
        del told["include_dashboard"]
        here = address.startswith(LOOPBACK)
        try:
            with only_this_machine() if here else nullcontext():
                guarded(f"connecting to Ray at {address!r}", EnvError, self.ray.init, address=address, **told)
        except EnvError as error:
            raise ConfigurationError(f"{error}; is a cluster running there?") from error


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it has ended by itself


@contextmanager
def only_this_machine() -> Iterator[None]:
    """Have Ray use the loopback address, as it does where it supports no clusters.

    Otherwise it takes this machine's other address, and whoever reaches that could run code here. Ray reads this from
    a variable of the environment when it is imported, and the variables are the user's; so it is told where it keeps
    what it read.
    """
    constants = sys.modules["ray._private.ray_constants"]
    before = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    if before is None:
        raise ConfigurationError(
            "this version of Ray cannot be started for this machine only; start it with RAY_ENABLE_WINDOWS_OR_OSX_"
            "CLUSTER=0 in the environment and `ray start --head`, and give RayOptions(address='auto')"
        )
    constants.ENABLE_RAY_CLUSTER = False  # pyright: ignore[reportAttributeAccessIssue]  # a module's variable
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before  # pyright: ignore[reportAttributeAccessIssue]  # as above
