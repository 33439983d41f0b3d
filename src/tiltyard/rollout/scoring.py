"""What a finished episode is worth: the environment's word, its `evaluate`, and reward functions.

The written rule, for every source of a score: bool, int, float and numpy or tensor scalars are numbers; None means
"not scored"; NaN, infinities, text and lists are errors. The reward is the weighted sum of the components. One
component that is None leaves the whole episode unscored, as a sum without it could not be compared with the others of
its group. One that raises, passes its deadline or gives what is no number fails its episode (`unscored`) and no
other. Failed episodes are not scored, and no score is ever made up.
"""

import asyncio
import inspect
import math
import numbers
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tiltyard._boundary import guarded, guarded_async, reason
from tiltyard.envs.result import scored
from tiltyard.errors import ConfigurationError, EnvError, EnvTimeoutError, RolloutError, ToolError
from tiltyard.rollout.beside import on_thread
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory

RewardFn = Callable[[dict[str, Any]], Any]
"""Scores a finished trajectory, given as the rollout returns it: a number, or None for "not scored"; may be async."""

ENV = "env"
"""The component that is the environment's own: the sum of its rewards, or what its `evaluate` gave."""

COMPONENTS = "reward_components"
"""The key in a trajectory's `info` that has the value of each component."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """How finished episodes are scored.

    Attributes:
        score: "env" sums the environment's rewards; "evaluate" asks the episode's environment for one number for the
            whole episode instead, with `evaluate([trajectory])`.
        reward_fns: Further components by name.
        weights: What each component counts; 1 where none is given. The environment's own, "env", counts 0 once there
            are reward functions, unless it has a weight here or `score` is "evaluate".
        success: Decides whether an episode was a success; None takes the environment's word (`info["success"]`).
        timeout_s: How long one function may take; None = no bound.
    """

    score: Literal["env", "evaluate"] = "env"
    reward_fns: Mapping[str, RewardFn] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    success: Callable[[dict[str, Any]], Any] | None = None
    timeout_s: float | None = 300.0

    def __post_init__(self) -> None:
        if self.score not in ("env", "evaluate"):
            raise ConfigurationError(f"score must be 'env' or 'evaluate', got {self.score!r}")
        for name, function in self.reward_fns.items():
            if not callable(function):
                raise ConfigurationError(f"reward function {name!r} must be callable, got {function!r}")
        known = [ENV, *self.reward_fns]
        for name, weight in self.weights.items():
            if name not in known:
                raise ConfigurationError(f"a weight is given for {name!r}; the components are: {', '.join(known)}")
            if not isinstance(weight, numbers.Real) or not math.isfinite(weight):
                raise ConfigurationError(f"the weight of {name!r} must be a finite number, got {weight!r}")
        if self.success is not None and not callable(self.success):
            raise ConfigurationError(f"success_callback must be callable, got {self.success!r}")

    @property
    def needed(self) -> bool:
        """False when the environment's rewards and its word are all there is."""
        return self.score != "env" or bool(self.reward_fns) or self.success is not None

    def weight(self, name: str) -> float:
        """What a component counts."""
        usual = 0.0 if name == ENV and self.score == "env" and self.reward_fns else 1.0
        return self.weights.get(name, usual)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Enter the reward functions that can be entered, such as a judge with connections, for one run."""
        async with AsyncExitStack() as stack:
            for function in self.reward_fns.values():
                if hasattr(function, "__aenter__"):
                    await stack.enter_async_context(function)  # pyright: ignore[reportArgumentType]  # just seen
            yield

    async def apply(
        self, trajectory: Trajectory, shown: Callable[[Trajectory], dict[str, Any]], envs: Sequence[object]
    ) -> Trajectory:
        """Score a finished episode.

        Args:
            trajectory: The episode as the loop left it.
            shown: The trajectory as the functions get it.
            envs: The environments that it was played in, for `evaluate`.

        Raises:
            ConfigurationError: `score` is "evaluate" and there is not one environment that has it.
        """
        if trajectory.failed and trajectory.ending is not Ending.UNSCORED:
            return trajectory
        try:
            trajectory = await self._rewarded(trajectory, shown, envs)
            if self.success is None or trajectory.failed:
                return trajectory
            success = await self._call("success_callback", self.success, shown(trajectory))
            return replace(trajectory, success=None if success is None else bool(success))
        except (RolloutError, ToolError) as error:
            return replace(trajectory, ending=Ending.UNSCORED, error=reason(error))

    async def _rewarded(
        self, trajectory: Trajectory, shown: Callable[[Trajectory], dict[str, Any]], envs: Sequence[object]
    ) -> Trajectory:
        if self.score == "env" and not self.reward_fns:
            return trajectory
        result = shown(trajectory)
        names = [ENV, *self.reward_fns]
        values = await asyncio.gather(
            self._own(trajectory, result, envs),
            *(self._component(name, function, result) for name, function in self.reward_fns.items()),
        )
        components = dict(zip(names, values, strict=True))
        trajectory = replace(trajectory, info={**trajectory.info, COMPONENTS: components})
        counted = {name: value for name, value in components.items() if self.weight(name) != 0}
        missing = [name for name, value in counted.items() if value is None]
        if missing:
            return without_score(trajectory, f"the reward {missing[0]!r} gave None: the episode was not scored")
        total = sum(self.weight(name) * (value or 0.0) for name, value in counted.items())
        return with_score(trajectory, scored(total, "the weighted sum of the rewards") or 0.0)

    async def _own(self, trajectory: Trajectory, result: dict[str, Any], envs: Sequence[object]) -> float | None:
        if self.score == "env":
            return trajectory.reward
        judges = [env for env in envs if callable(getattr(env, "evaluate", None))]
        if len(judges) != 1:
            raise ConfigurationError(
                f"score='evaluate' needs one environment with an evaluate method for each trajectory, found "
                f"{len(judges)}; give env_factory, or score='env'"
            )
        env: Any = judges[0]
        name = f"{type(env).__name__}.evaluate"
        return one_score(await self._call(name, env.evaluate, [result]), 1, name)[0]

    async def _component(self, name: str, function: RewardFn, result: dict[str, Any]) -> float | None:
        return scored(await self._call(f"reward {name!r}", function, result), f"reward {name!r}")

    async def _call(self, what: str, function: Callable[[Any], Any], argument: Any) -> Any:
        """Call a function of the user's, on a thread unless it is async, within the deadline."""
        try:
            async with asyncio.timeout(self.timeout_s):
                if is_async(function):
                    return await guarded_async(what, EnvError, function, argument)
                value = await on_thread(lambda: guarded(what, EnvError, function, argument))
                return await guarded_async(what, EnvError, lambda: value) if inspect.isawaitable(value) else value
        except TimeoutError as error:
            if isinstance(error, RolloutError):
                raise
            raise EnvTimeoutError(f"{what} did not return within {self.timeout_s:g} s") from error


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling a function, or an object, gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # asks what calling it gives
    )


def make_scoring(
    score: Literal["env", "evaluate"],
    reward_fns: Mapping[str, RewardFn] | Sequence[RewardFn] | RewardFn | None,
    reward_weights: Mapping[str, float] | None,
    success: Callable[[dict[str, Any]], Any] | None,
    timeout_s: float | None,
) -> Scoring:
    """A `Scoring`, with functions that came without names named after themselves.

    Raises:
        ConfigurationError: Two functions have one name, or a weight is for none; or they are of another form.
    """
    if isinstance(reward_fns, str) or not (
        reward_fns is None or callable(reward_fns) or isinstance(reward_fns, Iterable)
    ):
        raise ConfigurationError(f"reward_fns must be a function, or a list or dict of functions, got {reward_fns!r}")
    if reward_weights is not None and not isinstance(reward_weights, Mapping):
        raise ConfigurationError(f"reward_weights must be a dict of numbers by name, got {reward_weights!r}")
    named: dict[str, RewardFn] = {}
    if isinstance(reward_fns, Mapping):
        named = dict(reward_fns)
    else:
        listed = [reward_fns] if callable(reward_fns) else reward_fns or ()
        for function in listed:
            name = getattr(function, "__name__", type(function).__name__)
            if name in named:
                raise ConfigurationError(f"two reward functions are named {name!r}; give a dict of names and functions")
            named[name] = function
    if ENV in named:
        raise ConfigurationError(f"{ENV!r} is the environment's own reward; give the function another name")
    return Scoring(score, named, dict(reward_weights or {}), success, timeout_s)


def score_batch(env: Any, results: Sequence[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """Score finished trajectories with one call of `env.evaluate`: for scores that need all of them at once.

    Failed ones are left as they are and not shown to `evaluate`. The number it gives becomes the trajectory's reward;
    one that had ended `unscored` is `done` with it. None leaves a trajectory unscored.

    Args:
        env: Has `evaluate(trajectories, **options)`.
        results: What a rollout returned; they are not changed.
        options: Passed to `evaluate`.

    Raises:
        EnvError: `evaluate` raised, or did not give one finite number or None for each.
    """
    own = (Ending.UNSCORED.value, *(ending.value for ending in Ending if not ending.failed))
    places = [place for place, result in enumerate(results) if result["stop_reason"] in own]
    name = f"{type(env).__name__}.evaluate"
    given = guarded(name, EnvError, env.evaluate, [results[place] for place in places], **options)
    scores = dict(zip(places, one_score(given, len(places), name), strict=True))
    return [_with(result, scores[place]) if place in scores else result for place, result in enumerate(results)]


def one_score(given: Any, count: int, name: str) -> list[float | None]:
    """What `evaluate` returned as one score for each trajectory.

    Raises:
        EnvError: It is no list of that length, or one of them is no number.
    """
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != count:
        raise EnvError(f"{name} returned {given!r:.200} for {count} trajectories; expected a list of {count} numbers")
    return [scored(value, name) for value in given]


def with_score(trajectory: Trajectory, total: float) -> Trajectory:
    """The trajectory with one reward for all of it, paid at its last turn; the turns before it earn 0."""
    turns = len(trajectory.rewards)
    ending = Ending.DONE if trajectory.ending is Ending.UNSCORED else trajectory.ending
    return replace(
        trajectory,
        rewards=(*[0.0] * (turns - 1), total) if turns else (),
        start_reward=0.0 if turns else total,
        ending=ending,
        error=None,
    )


def without_score(trajectory: Trajectory, why: str) -> Trajectory:
    """The trajectory without a reward: failed, unless it was truncated, which says enough."""
    if trajectory.truncated and trajectory.rewards:
        return replace(trajectory, rewards=(None,) * len(trajectory.rewards))
    return replace(trajectory, ending=Ending.UNSCORED, error=why)


def _with(result: dict[str, Any], score: float | None) -> dict[str, Any]:
    turns = len(result["rewards"])
    if score is None:
        unscored = Ending.UNSCORED.value if not result["truncated"] else result["stop_reason"]
        error = result["error"] if result["truncated"] else "evaluate gave None: the episode was not scored"
        return {**result, "reward": None, "rewards": [None] * turns, "stop_reason": unscored, "error": error}
    ended = Ending.DONE.value if result["stop_reason"] == Ending.UNSCORED.value else result["stop_reason"]
    rewards = [*[0.0] * (turns - 1), score] if turns else []
    return {**result, "reward": score, "rewards": rewards, "stop_reason": ended, "error": None}
