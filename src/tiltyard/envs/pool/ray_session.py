"""A Ray cluster, reached or started: what it has, and actors on it. What runs on Ray is built on this."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from tiltyard._boundary import guarded
from tiltyard._optional import require
from tiltyard.errors import ConfigurationError, EnvError, RolloutError

CONTROL = "control"
"""The concurrency group of an actor's short calls: they are never behind those that wait for an environment."""

LOOPBACK = ("127.", "localhost")
"""How addresses begin that only this machine has."""

NEW = "local"
"""What Ray calls a cluster that is to be started on this machine."""

ANSWER_TIMEOUT_S = 2.0
"""How long a machine may take to answer; after that it is taken for one that is gone."""

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

    def call(self, what: str, error: type[RolloutError], call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call Ray. Where it was shut down it would start a cluster that others can reach, and is not called.

        Raises:
            RolloutError: An `error`: Ray was shut down, or the call raised.
        """
        if not self.ray.is_initialized():
            raise error(f"{what}: Ray was shut down in this process; close what runs on it, and make it again")
        return guarded(what, error, call, *args, **kwargs)

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
        if not any(self._fits(node) for node in nodes):
            raise ConfigurationError(f"no machine of the cluster has all that a worker needs: {self.options.needs}")

    def nodes(self) -> list[dict[str, float]]:
        """What each machine of the cluster has, whether it is in use or not."""
        return [machine["Resources"] for machine in self._machines().values()]

    @property
    def address(self) -> str | None:
        """This machine's in the cluster; None where it is not in it."""
        here = self._machines().get(self.ray.get_runtime_context().get_node_id())
        return None if here is None else here["NodeManagerAddress"]

    def silent(self, nodes: Iterable[str]) -> set[str]:
        """Those of these machines that do not answer, although Ray takes them for alive."""
        machines = self._machines()
        return {node for node in nodes if node in machines and not _answers(machines[node])}

    def node_beside(self, silent: Collection[str], taken: Sequence[str | None]) -> str | None:
        """A machine that has what a worker needs, beside those that do not answer; None leaves the choice to Ray.

        Args:
            silent: The machines that do not answer.
            taken: The machines of the other workers.
        """
        if not silent:
            return None
        fit = [node for node, has in self._machines().items() if node not in silent and self._fits(has["Resources"])]
        best = min if self.options.placement == "SPREAD" else max
        return best(fit, key=taken.count, default=None)

    @property
    def at_hand(self) -> int:
        """How many workers there is room for, by what they need; by the CPUs where they are counted for none."""
        needs = self.options.needs or {"CPU": 1.0}
        total: dict[str, float] = {}
        for node in self.nodes():
            for name, amount in node.items():
                total[name] = total.get(name, 0.0) + amount
        return max(1, min(int(total.get(name, 0.0) // amount) for name, amount in needs.items()))

    def actor(self, cls: type, *, threads: int, arguments: Sequence[Any], node: str | None = None) -> Any:
        """An actor of this class, which is never started again.

        Nor is a call of it ever made again: both would go on with a fresh environment as if nothing had happened.

        Args:
            cls: Its methods block; `CONTROL` is the group of those that must not wait for others.
            threads: How many calls run at one time.
            arguments: Its constructor's.
            node: The machine that it is to be on, if that is there; None leaves the choice to Ray.
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
        if node is not None:
            options["scheduling_strategy"] = self._on(node, soft=True)
            if not self.options.needs:
                options["memory"] = 1  # of what needs nothing Ray asks any machine, also one that is gone
        if self.options.runtime_env is not None:
            options["runtime_env"] = dict(self.options.runtime_env)
        remote = self.ray.remote(concurrency_groups={CONTROL: 2})(cls).options(**options)
        return self.call("making an actor", EnvError, remote.remote, *arguments)

    def end_process(self, node: str, pid: int) -> None:
        """Kill a process of an actor, whatever it does; waits for nothing.

        Args:
            node: Its machine in the cluster.
            pid: Its number there.
        """
        if node == self.ray.get_runtime_context().get_node_id():
            _end(pid)
            return
        there = self._on(node, soft=False)
        task = self.ray.remote(_end).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        self.call("ending a process", EnvError, task.remote, pid)

    def _machines(self) -> dict[str, Any]:
        """The machines that Ray takes for alive, by what it calls them."""
        listed = self.call("asking the cluster", EnvError, self.ray.nodes)
        return {node["NodeID"]: node for node in listed if node["Alive"]}

    def _fits(self, machine: Mapping[str, float]) -> bool:
        """Whether a worker fits on a machine that nobody uses."""
        return all(machine.get(name, 0.0) >= amount for name, amount in self.options.needs.items())

    def _on(self, node: str, *, soft: bool) -> Any:
        return self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=soft)

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


def _answers(machine: Mapping[str, Any]) -> bool:
    """Whether Ray's daemon of a machine can be reached."""
    try:
        socket.create_connection((machine["NodeManagerAddress"], machine["NodeManagerPort"]), ANSWER_TIMEOUT_S).close()
    except OSError:
        return False
    return True


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
