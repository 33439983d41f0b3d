"""Episodes that several processes played, brought together in each of them; one of them keeps them."""

from collections.abc import Sequence

from tiltyard.rollout.groups import Group
from tiltyard.rollout.trace import from_record, to_record
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.train.processes import Processes
from tiltyard.train.recorder import Recorder


def all_groups(groups: Sequence[Group], recorder: Recorder, processes: Processes) -> list[Group]:
    """The groups of all processes, in the order of the ranks: those of the tasks that one process would have had.

    Raises:
        ProcessLostError: Another process is gone.
    """
    parts = _exchanged([group.members for group in groups], recorder, processes)
    found: list[Group] = []
    for rank, (keys, part) in enumerate(zip(processes.gather([group.key for group in groups]), parts, strict=True)):
        if rank == processes.rank:
            found += groups
        else:
            found += [Group(key, members[0].task, members) for key, members in zip(keys, part, strict=True)]
    return found


def all_trajectories(trajectories: Sequence[Trajectory], recorder: Recorder, processes: Processes) -> list[Trajectory]:
    """The trajectories of all processes, in the order of the ranks.

    Raises:
        ProcessLostError: Another process is gone.
    """
    parts = _exchanged([(trajectory,) for trajectory in trajectories], recorder, processes)
    return [members[0] for part in parts for members in part]


def _exchanged(
    mine: Sequence[tuple[Trajectory, ...]], recorder: Recorder, processes: Processes
) -> list[list[tuple[Trajectory, ...]]]:
    """By rank, what each process played; the others' as a trace has it, and kept by the recorder that writes."""
    watched = recorder.hand_over()
    records = [[to_record(member) for member in members] for members in mine]
    parts: list[list[tuple[Trajectory, ...]]] = []
    for rank, (found, ledger) in enumerate(processes.gather((records, watched))):
        if rank == processes.rank:
            parts.append(list(mine))
            continue
        part = [tuple(map(from_record, members)) for members in found]
        recorder.take_over([member for members in part for member in members], ledger)
        parts.append(part)
    return parts
