"""A slot of a pool as an environment: whoever holds it is the only one who does."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tiltyard._boundary import reason
from tiltyard.envs.base import Env
from tiltyard.envs.pool.slot import ABOUT
from tiltyard.envs.result import FAILURE
from tiltyard.errors import ConfigurationError, EnvError, RolloutError
from tiltyard.types import Reply, StepResult, Task, ToolSchema, Turn


class PoolCalls(Protocol):
    """What a pool does for those who hold a slot."""

    def facts(self, index: int) -> Mapping[str, Any]:
        """What there is to know of a slot's environment."""
        ...

    def call(self, hold: "Hold", method: str, arguments: tuple[Any, ...]) -> Any:
        """Call the environment of a slot."""
        ...

    def give_back(self, hold: "Hold") -> None:
        """Nobody holds the slot any more."""
        ...


class Hold:
    """The right to a slot, until it is given back."""

    def __init__(self, pool: PoolCalls, index: int) -> None:
        self._pool = pool
        self.index = index
        self.given_back = False

    @property
    def facts(self) -> Mapping[str, Any]:
        """What there is to know of the environment."""
        return self._pool.facts(self.index)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call the environment.

        Raises:
            ConfigurationError: The slot was given back.
            TiltyardError: What went wrong.
        """
        if self.given_back:
            raise ConfigurationError(f"slot {self.index} was given back by close(); take another with get_adapters")
        return self._pool.call(self, method, arguments)

    def give_back(self) -> None:
        """Give the slot back; the first call does."""
        if not self.given_back:
            self.given_back = True
            self._pool.give_back(self)

    def tools(self) -> list[ToolSchema]:
        """The schemas that the environment showed last.

        Raises:
            EnvError: It could not tell them.
        """
        facts = self.facts
        if "tools" not in facts:
            raise EnvError(f"slot {self.index}: {facts['tools_error']}")
        return list(facts["tools"])


class _Adapter:
    """What the adapters of all kinds of environments have in common."""

    hold: Hold

    @property
    def index(self) -> int:
        """The slot."""
        return self.hold.index

    def close(self) -> None:
        """Give the slot back; the environment lives on in the pool. More than one call gives it back once."""
        self.hold.give_back()

    def __getattr__(self, name: str) -> Any:
        """What the environment says about itself, such as `dataset_size`; an attribute that it has not is none here."""
        if name in ABOUT and name in (facts := self.hold.facts):
            return facts[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class EnvPoolAdapter(_Adapter, Env):
    """A slot of a pool with a tool-call environment, as an `Env`."""

    def __init__(self, hold: Hold) -> None:
        self.hold = hold

    def reset(self, trajectory: dict[str, Any] | None = None) -> StepResult:
        """Begin an episode; see `EnvPool.reset`.

        Raises:
            RolloutError: It could not be begun.
        """
        return self.hold.call("reset", trajectory)

    def step(self, tool_name: str, arguments: dict[str, Any]) -> StepResult:
        """Run one tool call.

        A step that fails is the last of its episode: `done`, without a reward, and with the text of the error in
        `info["error"]`. `EnvTool` and every rollout take it for what it is, an episode that failed.

        Raises:
            ToolError: The model's mistake; the episode goes on.
        """
        try:
            return self.hold.call("step", tool_name, arguments)
        except RolloutError as error:
            return StepResult("", None, True, {"error": reason(error), FAILURE: error})

    def tools(self) -> list[ToolSchema]:
        """The environment's own schemas, as they were after the last reset.

        Raises:
            EnvError: It could not tell them.
        """
        return self.hold.tools()

    def evaluate(self, trajectories: Sequence[Any], **kwargs: Any) -> list[float]:
        """The environment's own scores of finished trajectories."""
        return self.hold.call("evaluate", list(trajectories), kwargs)


class PooledTextEnv(_Adapter):
    """A slot of a pool with a text environment, as one."""

    def __init__(self, hold: Hold) -> None:
        self.hold = hold

    def reset(
        self, seed: int | None = None, row_index: int | None = None, evaluation: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the environment gets what its own `reset` takes.

        Raises:
            ConfigurationError: A row is named, and the environment takes none.
            RolloutError: The episode could not be begun.
        """
        result = self.hold.call("reset", {"seed": seed, "row_index": row_index, "evaluation": evaluation})
        return result.observation, result.info

    def step(self, action: str) -> tuple[Any, float | None, bool, bool, dict[str, Any]]:
        """Act.

        Raises:
            RolloutError: The environment failed, or its worker is gone.
            ToolError: The model's mistake.
        """
        result = self.hold.call("step", "", {"message": action})
        return result.observation, result.reward, result.done, result.truncated, result.info

    @property
    def tools(self) -> list[ToolSchema]:
        """The schemas that the environment shows."""
        return self.hold.tools()


class PooledTurnEnv(_Adapter):
    """A slot of a pool with a `TurnEnv`, as one."""

    def __init__(self, hold: Hold) -> None:
        self.hold = hold

    def start(self, task: Task) -> Turn:
        """Begin an episode.

        Raises:
            RolloutError: It could not be begun.
        """
        return self.hold.call("start", task)

    def reply(self, reply: Reply) -> Turn:
        """Answer one reply.

        Raises:
            RolloutError: The environment failed, or its worker is gone.
        """
        return self.hold.call("reply", reply)

    def tools(self) -> list[ToolSchema]:
        """The tools of the episode that was started last."""
        return self.hold.tools()


Adapter = EnvPoolAdapter | PooledTextEnv | PooledTurnEnv
"""A slot as an environment; of which kind is what the pool's environments are."""

ADAPTERS: dict[str, type[Adapter]] = {
    "tool": EnvPoolAdapter,
    "text": PooledTextEnv,
    "turn": PooledTurnEnv,
}
"""The adapter of each kind of environment."""
