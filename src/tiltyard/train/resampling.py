"""Dynamic sampling: groups that teach nothing are followed by others, until the batch is full of groups that do."""

from collections.abc import Callable

from tiltyard.rollout.groups import Group
from tiltyard.train.algorithms import Algorithm
from tiltyard.train.algorithms.group_relative import GroupRelative
from tiltyard.train.batch import Batch, Truncated, build_batch


def filled(
    groups: list[Group], sample: Callable[[int], list[Group]], algorithm: Algorithm, *, truncated: Truncated = "keep"
) -> list[Group]:
    """Follow the groups of a batch by others until as many teach something, or the algorithm's rounds are used up.

    DAPO's dynamic sampling (Yu et al. 2025, arXiv:2503.14476, section 3.2 and eq. 11), which knows rewards of 0 and 1
    and replaces groups of one of them; here a group is followed by another where none of its tokens would have a
    gradient. Each round asks for the groups that are missing and no more, so that none that teaches is thrown away.

    Args:
        groups: A whole batch, as it was sampled.
        sample: Gives so many groups of the tasks that come next.
        algorithm: Says which groups teach, and how many further rounds there may be.
        truncated: As in `build_batch`.

    Returns:
        All that were sampled, those that teach nothing among them: what becomes of them is for `build_batch` to say.
    """
    wanted = len(groups)
    for _ in range(_rounds(algorithm)):
        missing = wanted - build_batch(groups, algorithm, truncated=truncated).teaching
        if missing <= 0:
            break
        groups = [*groups, *sample(missing)]
    return groups


def shortage(batch: Batch, wanted: int, algorithm: Algorithm) -> str | None:
    """What is to be said of a batch that was to be filled and is not full; None of any other."""
    rounds, counts = _rounds(algorithm), batch.counts
    if not rounds or batch.teaching >= wanted:
        return None
    return (
        f"learns from {batch.teaching} groups in place of {wanted}: of the {counts.groups} that were sampled in "
        f"{1 + rounds} rounds {counts.zero_variance_groups} had equal rewards and {counts.small_groups} fewer than two "
        "rewards. Raise algorithm.resample_rounds, or choose tasks that are neither always solved nor never"
    )


def _rounds(algorithm: Algorithm) -> int:
    return algorithm.resample_rounds if isinstance(algorithm, GroupRelative) else 0
