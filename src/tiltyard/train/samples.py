"""What several episodes of each task amount to: pass@k and avg@k, with intervals over the tasks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from statistics import fmean
from typing import Any

from tiltyard.rollout.trajectory import Trajectory
from tiltyard.train import interval
from tiltyard.train.evaluate import successes
from tiltyard.train.interval import Interval

WILSON = "Wilson's score interval, clustered by task"
STUDENT = "Student's t over the means of the tasks"


@dataclass(frozen=True, slots=True)
class Samples:
    """What the episodes of all tasks amount to, each task counting the same.

    Failed episodes are in no figure: a task is judged by those of its episodes that did not fail, and is left out
    of pass@k when there are fewer than k of them. An interval is over tasks; its `n` is how many.

    Attributes:
        tasks: How many tasks were played.
        samples: Episodes that each of them was to have.
        success: avg@samples: the mean over the tasks of the share of episodes that succeeded; None where nothing
            says what success is.
        reward: The mean over the tasks of their mean reward.
        pass_at: pass@k by k: how likely one of k episodes of a task succeeds. Empty without `success`.
        left_out: Tasks that pass@k leaves out, by k, where there are any.
    """

    tasks: int
    samples: int
    success: Interval | None
    reward: Interval
    pass_at: Mapping[int, Interval] = field(default_factory=dict)
    left_out: Mapping[int, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, with the names of the methods."""
        return {
            **asdict(self),
            "pass_at": {str(k): asdict(found) for k, found in self.pass_at.items()},
            "left_out": {str(k): count for k, count in self.left_out.items()},
            "intervals": {"success": WILSON, "pass_at": WILSON, "reward": STUDENT},
        }


def pass_at_k(n: int, successes: int, k: int) -> float:
    """The chance that one of k episodes succeeds, without bias, from n of which so many did.

    It is 1 - C(n - successes, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374), as a product that stays small.

    Raises:
        ValueError: There are fewer than k episodes, or not as many successes.
    """
    if not (1 <= k <= n and 0 <= successes <= n):
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= successes <= n, got k={k}, n={n}, successes={successes}")
    if n - successes < k:
        return 1.0
    return 1.0 - prod(1.0 - k / i for i in range(n - successes + 1, n + 1))


def ks_up_to(samples: int) -> Iterator[int]:
    """The values of k that are worth a line: 1, 2, 4, 8 and so on, and `samples` itself."""
    k = 1
    while k < samples:
        yield k
        k *= 2
    yield samples


def score_samples(by_task: Sequence[Sequence[Trajectory]], samples: int, max_reward: float | None = None) -> Samples:
    """Say what the episodes of the tasks amount to.

    Args:
        by_task: The episodes of each task, failed ones included.
        samples: How many episodes each task was to have.
        max_reward: What counts as success where the environment does not say (see `evaluate.score`).
    """
    whole = [[episode for episode in episodes if not episode.failed] for episodes in by_task]
    rewards = [[episode.reward for episode in episodes if episode.reward is not None] for episodes in whole]
    reward = interval.mean([fmean(values) for values in rewards if values])
    outcomes = successes([episode for episodes in whole for episode in episodes], max_reward)
    if outcomes is None:
        return Samples(len(by_task), samples, None, reward)
    remaining = iter(outcomes)
    won = [[next(remaining) for _ in episodes] for episodes in whole]
    counted = {k: [task for task in won if len(task) >= k] for k in ks_up_to(samples)}
    return Samples(
        tasks=len(by_task),
        samples=samples,
        success=_over_tasks([task for task in won if task], 1),
        reward=reward,
        pass_at={k: _over_tasks(tasks, k) for k, tasks in counted.items()},
        left_out={k: left for k, tasks in counted.items() if (left := len(won) - len(tasks))},
    )


def _over_tasks(won: Sequence[Sequence[bool]], k: int) -> Interval:
    rates = [pass_at_k(len(task), sum(task), k) for task in won]
    return interval.share_of_tasks(rates, sum(map(len, won)))
