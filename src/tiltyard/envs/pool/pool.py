"""A pool of environments: slots that workers own, called one by one or many at a time."""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from tiltyard.envs.pool.adapter import ADAPTERS, EnvPoolAdapter, Hold
from tiltyard.envs.pool.crew import Crew
from tiltyard.envs.pool.holding import Holding, Where
from tiltyard.envs.pool.layout import DeviceMesh, bound, shares, worker_count
from tiltyard.envs.pool.recipe import env_recipe
from tiltyard.envs.pool.seat import Source
from tiltyard.envs.pool.shard import WorkerInfo
from tiltyard.envs.pool.slot_host import Call
from tiltyard.envs.pool.sources import BackendName, backend_of
from tiltyard.errors import ConfigurationError, TiltyardError
from tiltyard.leases import LeaseReport, Leases
from tiltyard.types import StepResult, ToolSchema

if TYPE_CHECKING:
    from tiltyard.envs.pool.ray_session import RayOptions


class EnvPool:
    """`pool_size` environments over worker processes of this machine, or over a Ray cluster.

    Each worker owns some of the slots; a call goes to the owner of its slot and to no other, and a batch is one call to
    each owner. In a worker each environment has a thread of its own: it is made there, and all its calls run there. A
    worker that dies, or passes the deadline, costs the episodes of its own slots: their next step raises
    `ResetNeededError`, the worker is replaced meanwhile, and `reset` begins a new episode.

    Attributes:
        pool_size: How many slots there are.
        num_workers: How many workers own them.
    """

    def __init__(  # noqa: PLR0913  # the parameters of the contract, each by its name
        self,
        pool_size: int = 32,
        device_mesh: DeviceMesh | Any | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        env_factory: Callable[..., Any] | None = None,
        num_workers: int | None = None,
        backend: BackendName = "process",
        *,
        step_timeout_s: float | None = 120.0,
        start_timeout_s: float | None = 120.0,
        ray: "RayOptions | None" = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Start the workers, and make every environment.

        Args:
            pool_size: How many environments there are, at least one for each worker.
            device_mesh: Anything with a `world_size`, which is the number of workers.
            env_kwargs: Keyword arguments of `env_factory`; without one, of `OpenEnv`.
            env_factory: A class or function that makes an environment: an `Env`, a text environment or a `TurnEnv`.
                It is sent by name, so it stands at the top of a module. `own_process = True` in the class, or on the
                function, asks for a worker for each environment.
            num_workers: How many workers; None takes the mesh's, else as many as there are processors.
            backend: `"process"`, or `"ray"` for a cluster.
            step_timeout_s: How long one call, or a whole batch, may take; then the worker is killed, since nothing else
                ends an environment that hangs. None sets no bound.
            start_timeout_s: How long a worker may take to make its environments; None sets no bound.
            ray: Which cluster, and what of it each worker needs.
            progress: Called while the pool starts, with how many environments are ready, and of how many.

        Raises:
            ConfigurationError: Something cannot be as it is given; nothing was started.
            EnvError: An environment could not be made; those that were are closed.
            MissingExtraError: Ray is not installed.
        """
        recipe = env_recipe(env_factory, env_kwargs)
        self._step_timeout_s = bound("step_timeout_s", step_timeout_s)
        start_timeout_s = bound("start_timeout_s", start_timeout_s)
        count = partial(worker_count, pool_size, num_workers, device_mesh, own_process=recipe.own_process)
        count(at_hand=1)  # what is wrong is told before a cluster is asked
        self.pool_size = pool_size
        self._leases = Leases()
        self._holding = Holding(pool_size)
        self._lock = threading.Lock()
        self._closed = False
        backing = backend_of(backend, ray)
        try:
            owned = shares(pool_size, count(at_hand=backing.at_hand))
            self._crew = Crew(owned, recipe, Source(backing, self._leases, start_timeout_s))
        except BaseException:
            backing.close()
            raise
        self.num_workers = len(owned)
        self._crew.start(progress)

    def reset(self, idx: int, trajectory: dict[str, Any] | None = None) -> StepResult:
        """Begin an episode in one slot.

        Args:
            idx: The slot.
            trajectory: The task: `seed`, `row_index`, `evaluation`, `messages` and the fields of its row.

        Raises:
            RolloutError: It could not be begun; the cause holds the worker's traceback.
        """
        return _or_raise(self.reset_batch([idx], [trajectory])[0])

    def step(self, idx: int, tool_name: str, arguments: dict[str, Any]) -> StepResult:
        """Run one tool call in one slot. To a text environment the text is `arguments["message"]`.

        Raises:
            ResetNeededError: The episode went with its worker.
            RolloutError: The environment failed, or passed the deadline; the cause holds the worker's traceback.
            ToolError: The model's mistake.
        """
        return _or_raise(self.step_batch([idx], [tool_name], [arguments])[0])

    def reset_batch(
        self, indices: Sequence[Where], trajectories: Sequence[dict[str, Any] | None] | None = None
    ) -> list[StepResult | TiltyardError]:
        """Begin an episode in each of these slots, with one call to each worker.

        Args:
            indices: The slots, each once; those that an adapter holds by their adapter.
            trajectories: The task of each; None gives none.

        Returns:
            In the order of `indices`: the first observation, or the error of that slot, which is not raised.

        Raises:
            ConfigurationError: A slot is none, is named twice or is held by an adapter, or the lengths differ.
        """
        given = [None] * len(indices) if trajectories is None else list(trajectories)
        _same_length("trajectories", given, indices)
        calls = [(index, "reset", (one,)) for index, one in zip(self._holding.named(indices), given, strict=True)]
        return self._run(calls, begins=True)

    def step_batch(
        self, indices: Sequence[Where], tool_names: Sequence[str], arguments_list: Sequence[dict[str, Any]]
    ) -> list[StepResult | TiltyardError]:
        """Run one tool call in each of these slots, with one call to each worker.

        Args:
            indices: The slots, each once; those that an adapter holds by their adapter.
            tool_names: The tool of each.
            arguments_list: The arguments of each.

        Returns:
            In the order of `indices`: the result, or the error of that slot, which is not raised.

        Raises:
            ConfigurationError: A slot is none, is named twice or is held by an adapter, or the lengths differ.
        """
        _same_length("tool_names", tool_names, indices)
        _same_length("arguments_list", arguments_list, indices)
        rows = zip(self._holding.named(indices), tool_names, arguments_list, strict=True)
        return self._run([(index, "step", (name, arguments)) for index, name, arguments in rows], begins=False)

    def tools(self, idx: int = 0) -> list[ToolSchema]:
        """The schemas that a slot's environment showed last, after its making or a reset.

        Raises:
            ConfigurationError: There is no such slot.
            EnvError: It could not tell them.
        """
        return Hold(self, idx).tools()

    def get_adapters(self, n: int) -> list[EnvPoolAdapter]:
        """Take `n` free slots, each as an environment of its own; `close()` of one gives its slot back.

        They are of the kind that the pool's environments are: for text environments and for `TurnEnv`s that is another
        class than `EnvPoolAdapter`, and as good to every rollout.

        Raises:
            ConfigurationError: There are not so many, or not so many are free.
        """
        self._check_open()
        holds = self._holding.take(n, self)
        # One class stands for all three, as in the contract.
        return [cast("EnvPoolAdapter", ADAPTERS[hold.facts["kind"]](hold)) for hold in holds]

    def adapter(self, wait_s: float = 5.0) -> EnvPoolAdapter:
        """Take one free slot: `env_factory=pool.adapter` gives a rollout's episodes slots of this pool.

        Args:
            wait_s: How long to wait for one that is being given back.

        Raises:
            ConfigurationError: None is free.
        """
        self._holding.wait(wait_s)
        return self.get_adapters(1)[0]

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """The workers as they stand."""
        return tuple(shard.info for shard in self._crew.shards)

    def report(self) -> LeaseReport:
        """How many workers there were, and how many of them are still alive."""
        return self._leases.report()

    def facts(self, index: int) -> Mapping[str, Any]:
        """What there is to know of a slot's environment: its kind, its tools, and what it says about itself."""
        return self._crew.owner(self._holding.checked(index)).facts[index]

    def call(self, hold: Hold, method: str, arguments: tuple[Any, ...]) -> Any:
        """One call of an adapter.

        Raises:
            TiltyardError: What went wrong.
        """
        return _or_raise(self._run([(hold.index, method, arguments)], begins=method in ("reset", "start"))[0])

    def give_back(self, hold: Hold) -> None:
        """An adapter is done with its slot."""
        self._crew.owner(hold.index).forget([hold.index])
        self._holding.give_back(hold)

    def close(self, timeout_s: float = 10.0) -> None:
        """Close every environment and end every worker; later calls do nothing.

        Args:
            timeout_s: How long a worker may take; one that takes longer is killed.

        Raises:
            ExceptionGroup: Environments could not be closed; all others are closed all the same.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        errors = self._crew.close(timeout_s)
        if errors:
            raise ExceptionGroup("closing the environments of the pool failed", errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, calls: list[Call], *, begins: bool) -> list[Any]:
        self._check_open()
        return self._crew.run(calls, begins=begins, timeout_s=self._step_timeout_s)

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigurationError("the pool is closed")


def _or_raise(result: Any) -> Any:
    if isinstance(result, TiltyardError):
        raise result
    return result


def _same_length(name: str, values: Sequence[Any], indices: Sequence[Any]) -> None:
    if len(values) != len(indices):
        raise ConfigurationError(
            f"{name} must have one entry for each of the {len(indices)} indices, got {len(values)}"
        )
