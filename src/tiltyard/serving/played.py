"""What a session plays: any environment, in the terms of the wire."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from tiltyard.envs.openenv.wire import OWN
from tiltyard.errors import ActionRefusedError
from tiltyard.serving.frames import observed
from tiltyard.types import StepResult

ALWAYS_TAKEN = frozenset({"seed", "episode_id"})
"""Reset arguments that every client may send: an environment that takes none of the two goes without."""

ABOUT = ("dataset_size", "evaluation_size", "max_turns", "system_prompt", "examples")
"""Attributes by which an environment says something about itself."""

Data = Mapping[str, Any]


class Played(Protocol):
    """One environment behind one session; called by one thread only."""

    def facts(self) -> dict[str, Any]:
        """What the environment says about itself; see `tiltyard.envs.openenv.wire`."""
        ...

    def reset(self, data: Data) -> dict[str, Any]:
        """Begin an episode: the data of the answer."""
        ...

    def step(self, data: Data) -> dict[str, Any]:
        """Take an action: the data of the answer."""
        ...

    def state(self) -> dict[str, Any]:
        """The state of the episode."""
        ...

    def close(self) -> None:
        """Give back what the environment holds."""
        ...


class Progress:
    """What `state` says of an environment that has no state of its own."""

    def __init__(self) -> None:
        self.episode_id: str | None = None
        self.steps = 0

    def begin(self, data: Data) -> None:
        """A new episode."""
        self.episode_id, self.steps = data.get("episode_id"), 0

    def as_data(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The data of the answer."""
        return {"episode_id": self.episode_id, "step_count": self.steps, OWN: dict(facts)}


def answer(result: StepResult, own: Mapping[str, Any] | None = None, *, ended: bool = True) -> dict[str, Any]:
    """The data of an answer.

    Args:
        result: What the environment gave.
        own: What only clients of Tiltyard read.
        ended: False for a reset, whose `truncated` nobody expects.
    """
    observation, is_plain = observed(result.observation)
    said: dict[str, Any] = {**({"plain": True} if is_plain else {}), **(own or {})}
    if ended and result.truncated:
        said |= {"truncated": True, "terminated": result.done}
    metadata = {**result.info, OWN: said} if said else dict(result.info)
    over = result.done or result.truncated
    return {"observation": observation, "reward": result.reward, "done": over, "metadata": metadata}


def mistake(observation: Data, text: str) -> dict[str, Any]:
    """The data of an answer to a mistake of the model: it earns nothing and the episode goes on."""
    return {"observation": observation, "reward": None, "done": False, "metadata": {OWN: {"tool_error": text}}}


def about(env: Any) -> dict[str, Any]:
    """What the environment says about itself in its attributes, without those that say nothing."""
    said = {name: getattr(env, name, None) for name in ABOUT}
    return {name: value for name, value in said.items() if value is not None}


def refuse_unknown(data: Data, taken: Iterable[str], where: str) -> list[str]:
    """Check that each reset argument that says something is taken; returns those of `ALWAYS_TAKEN` that are not.

    Raises:
        ActionRefusedError: An argument is not taken, which would otherwise be dropped without a word.
    """
    said = [name for name, value in data.items() if value is not None and value is not False]
    unknown = [name for name in said if name not in taken]
    wrong = [name for name in unknown if name not in ALWAYS_TAKEN]
    if wrong:
        known = ", ".join(sorted(taken)) or "no arguments"
        told = f"{where} does not take it; it takes {known}"
        errors = [{"type": "unexpected_keyword_argument", "loc": [name], "msg": told} for name in wrong]
        raise ActionRefusedError(f"{where} does not take {', '.join(map(repr, wrong))}; it takes {known}", errors)
    return [name for name in unknown if name != "episode_id"]


def text_action(data: Data, where: str, others: frozenset[str] = frozenset()) -> str:
    """The model's text in an action.

    Raises:
        ActionRefusedError: It is not `{"message": text}`.
    """
    errors = []
    if "message" not in data:
        errors.append({"type": "missing", "loc": ["message"], "msg": "Field required"})
    elif not isinstance(data["message"], str):
        given = type(data["message"]).__name__
        errors.append({"type": "string_type", "loc": ["message"], "msg": f"Input should be a string, got a {given}"})
    allowed = {"message", "metadata", *others}
    errors += [
        {"type": "extra_forbidden", "loc": [name], "msg": "Extra inputs are not permitted"}
        for name in data
        if name not in allowed
    ]
    if errors:
        raise ActionRefusedError(f'an action of {where} is {{"message": text}}', errors)
    return data["message"]
