"""What a set of episodes amounts to: success or reward with its interval, and what does not count."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tiltyard.rollout.trajectory import Trajectory
from tiltyard.train import interval
from tiltyard.train.interval import Interval


@dataclass(frozen=True, slots=True)
class Score:
    """What a set of episodes amounts to.

    Failed episodes are counted apart, never as 0. An episode that was cut before anything was scored is no
    failure: it did not succeed, and has no reward.

    Attributes:
        metric: What `value` is: the share of episodes that succeeded, or the mean reward where nothing says
            what success is.
        value: The figure to compare.
        reward: Mean of the summed rewards of the episodes that have one.
        success: Share of episodes that succeeded; None where nothing says what success is.
        valid: Share of answers (or episodes) that the environment called valid; None where it says nothing.
        turns: Mean turns of the episodes that did not fail; None when there are none.
        turns_to_success: Mean turns of those that succeeded; None when there are none.
        episodes: All of them, failed ones included.
        failed: Episodes whose ending says that they cannot be scored.
        truncated: Episodes that were cut for a reason outside the task.
        unscored: Episodes that did not fail and have no reward all the same.
        endings: How many ended how.
        reward_parts: Mean of each named part of the reward, over the episodes whose info has it.
    """

    metric: Literal["success", "reward"]
    value: Interval
    reward: Interval
    success: Interval | None
    valid: Interval | None
    turns: float | None
    turns_to_success: float | None
    episodes: int
    failed: int
    truncated: int
    unscored: int
    endings: Mapping[str, int]
    reward_parts: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, the figure to compare as `mean`, `low`, `high` and `n` at its top, and the parts."""
        rest = {name: value for name, value in asdict(self).items() if name not in _ELSEWHERE}
        return {"metric": self.metric, **asdict(self.value), **rest, **part_figures(self.reward_parts)}


_ELSEWHERE = ("metric", "value", "reward_parts")


def part_figures(parts: Mapping[str, float]) -> dict[str, float]:
    """The parts of a reward under the names that they have among other figures."""
    return {f"reward_parts/{name}": value for name, value in parts.items()}


def score(trajectories: Sequence[Trajectory], max_reward: float | None = None, *, success_known: bool = False) -> Score:
    """Say what these episodes amount to.

    An episode succeeded when the environment's `info["success"]` says so; where the environment never speaks of
    success, when its reward reaches `max_reward`; with neither, the mean reward is the figure.

    Args:
        trajectories: All episodes, failed ones included.
        max_reward: The highest reward of an episode; None when it is not known.
        success_known: The environment spoke of success in other episodes of the run.
    """
    whole = [trajectory for trajectory in trajectories if not trajectory.failed]
    outcomes = successes(whole, max_reward, success_known=success_known)
    rewards = [trajectory.reward for trajectory in whole if trajectory.reward is not None]
    reward = interval.mean(rewards)
    success = None if outcomes is None else interval.share(sum(outcomes), len(outcomes))
    won = [trajectory.turns for trajectory, outcome in zip(whole, outcomes or [], strict=False) if outcome]
    return Score(
        metric="reward" if success is None else "success",
        value=reward if success is None else success,
        reward=reward,
        success=success,
        valid=valid_share(whole),
        turns=_mean([trajectory.turns for trajectory in whole]),
        turns_to_success=_mean(won),
        episodes=len(trajectories),
        failed=len(trajectories) - len(whole),
        truncated=sum(trajectory.truncated for trajectory in trajectories),
        unscored=len(whole) - len(rewards),
        endings=endings(trajectories),
        reward_parts=part_means(whole),
    )


def as_success(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return `Score.as_dict()` of silent episodes as what it is once the environment speaks of success: none succeeded.

    Results can only be compared when they are of one metric; one that is of success already stays as it is.
    """
    if result["metric"] == "success":
        return dict(result)
    none = asdict(interval.share(0, result["episodes"] - result["failed"]))
    return {**result, **none, "metric": "success", "success": none}


def successes(
    whole: Sequence[Trajectory], max_reward: float | None, *, success_known: bool = False
) -> list[bool] | None:
    """Say of each episode that did not fail whether it succeeded; None where nothing says what success is.

    Once the environment speaks of success in one episode, here or elsewhere in the run (`success_known`), an episode
    that ended without the word did not succeed.
    """
    if success_known or any(trajectory.success is not None for trajectory in whole):
        return [bool(trajectory.success) for trajectory in whole]
    if max_reward is None:
        return None
    return [trajectory.reward is not None and trajectory.reward >= max_reward for trajectory in whole]


def valid_share(whole: Sequence[Trajectory]) -> Interval | None:
    """Return the share of what the environment called valid: `info["valid"]`, one bool or one for each turn."""
    stated = [trajectory.info["valid"] for trajectory in whole if "valid" in trajectory.info]
    flags = [bool(flag) for value in stated for flag in (value if isinstance(value, list | tuple) else [value])]
    return interval.share(sum(flags), len(flags)) if flags else None


def part_means(whole: Sequence[Trajectory]) -> dict[str, float]:
    """Average each part of the reward (`info["reward_parts"]`); one that is no finite number is in no mean."""
    values: dict[str, list[float]] = {}
    for trajectory in whole:
        parts = trajectory.info.get("reward_parts")
        for name, value in parts.items() if isinstance(parts, Mapping) else ():
            if isinstance(value, int | float) and math.isfinite(value):
                values.setdefault(str(name), []).append(float(value))
    return {name: sum(found) / len(found) for name, found in values.items()}


def endings(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """Count how the episodes ended, most frequent first."""
    return dict(Counter(trajectory.ending.value for trajectory in trajectories).most_common())


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
