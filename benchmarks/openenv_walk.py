"""An OpenEnv environment that does nearly nothing, for `benchmarks.openenv`."""

from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class WalkAction(Action):
    message: str


class WalkObservation(Observation):
    text: str = ""


class WalkEnvironment(Environment[WalkAction, WalkObservation, State]):
    """Says where one went."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> WalkObservation:
        del seed, episode_id, kwargs
        return WalkObservation(text="You stand at the gate.")

    def step(self, action: WalkAction, timeout_s: float | None = None, **kwargs: Any) -> WalkObservation:
        del timeout_s, kwargs
        return WalkObservation(text=f"You went {action.message}.", reward=0.0)

    @property
    def state(self) -> State:
        return State()
