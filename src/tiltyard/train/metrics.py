"""The figures of one training step: one line of `metrics.jsonl`."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiltyard.rollout.trajectory import Trajectory
from tiltyard.train.batch import Batch
from tiltyard.train.evaluate import Score, part_figures, score
from tiltyard.train.staleness import Staleness


@dataclass(slots=True)
class Totals:
    """What a run has played so far, training and evaluation together, over all its attempts.

    Attributes:
        episodes: Finished episodes, failed ones included.
        failed: Those whose ending says that they cannot be scored.
        truncated: Those that were cut for a reason outside the task.
        endings: How many ended how.
        sampled_tokens: What the policy sampled in all of them.
        errors: The first error of each failed ending, with its episode.
    """

    episodes: int = 0
    failed: int = 0
    truncated: int = 0
    endings: dict[str, int] = field(default_factory=dict)
    sampled_tokens: int = 0
    errors: dict[str, str] = field(default_factory=dict)

    def add(self, trajectory: Trajectory) -> None:
        """Count one finished episode."""
        self.episodes += 1
        self.failed += trajectory.failed
        self.truncated += trajectory.truncated
        self.endings[trajectory.ending.value] = self.endings.get(trajectory.ending.value, 0) + 1
        self.sampled_tokens += trajectory.transcript.sampled if trajectory.transcript else 0
        if trajectory.failed:
            self.errors.setdefault(trajectory.ending.value, f"{trajectory.episode_id}: {trajectory.error}")


def step_metrics(
    trajectories: Sequence[Trajectory],
    *,
    max_reward: float | None,
    seconds: Mapping[str, float],
    success_known: bool = False,
) -> dict[str, Any]:
    """Return the figures of a step's episodes, under names that a reader of `metrics.jsonl` knows.

    Args:
        trajectories: All episodes of the step.
        max_reward: As in `score`.
        seconds: Seconds by phase; tokens a second are those sampled over the seconds of "rollout".
        success_known: As in `score`.
    """
    played = score(trajectories, max_reward, success_known=success_known)
    rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
    sampled = [trajectory.transcript.sampled for trajectory in trajectories if trajectory.transcript]
    took = seconds.get("rollout", 0.0)
    return {
        "reward": played.reward.mean,
        "reward_std": statistics.pstdev(rewards) if rewards else None,
        "success": _mean(played, "success"),
        "valid": _mean(played, "valid"),
        "turns": played.turns,
        "episodes": played.episodes,
        "failed": played.failed,
        "truncated": played.truncated,
        "unscored": played.unscored,
        "endings": dict(played.endings),
        "sampled_tokens": sum(sampled),
        "tokens_per_s": sum(sampled) / took if took > 0 else None,
        "seconds": dict(seconds),
        **part_figures(played.reward_parts),
    }


def learned_figures(
    episodes: Mapping[str, Any], aged: Staleness, batch: Batch, resampled: int, update: dict[str, Any]
) -> dict[str, Any]:
    """Return the figures of a step: those of its episodes, and what was learned from them.

    Args:
        episodes: What `step_metrics` returned.
        aged: How old the batch's tokens were.
        batch: What the episodes came to.
        resampled: How many groups were sampled in the place of those that teach nothing.
        update: The figures of the update.
    """
    counts = batch.counts
    return {
        "optimiser_step": update.pop("step"),
        **episodes,
        "staleness_mean": aged.mean,
        "staleness_max": aged.max,
        "groups": counts.groups,
        "zero_variance_groups": counts.zero_variance_groups,
        "small_groups": counts.small_groups,
        "teaching_groups": batch.teaching,
        "resampled_groups": resampled,
        "unscored_turns": counts.unscored_turns,
        "unscored_episodes": counts.unscored,
        "untrainable_episodes": counts.untrainable,
        "truncated_policy": counts.truncated_policy,
        "granularity": batch.granularity,
        **update,
    }


def _mean(played: Score, name: str) -> float | None:
    interval = getattr(played, name)
    return None if interval is None else interval.mean
