"""What an earlier attempt of a run left on disk: episodes that it finished, counted, and used again."""

from collections import defaultdict
from collections.abc import Container, Mapping

from tiltyard.rollout.trace import from_record, read_traces
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.train.recorder import TRAIN, Recorder
from tiltyard.train.run_folder import RunFolder


class Earlier:
    """Episodes that were finished for steps and evaluations that are still to be done.

    An episode that failed is not among them: it is played again. Of one that several attempts played the last counts.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], dict[str, Trajectory]] = defaultdict(dict)

    def take(self, phase: str, step: int) -> Mapping[str, Trajectory]:
        """What was finished for this phase and step, by episode id; it is not kept here any longer."""
        return self._found.pop((phase, step), {})

    def add(self, phase: str, step: int, trajectory: Trajectory) -> None:
        """Keep one."""
        if not trajectory.failed:
            self._found[phase, step][trajectory.episode_id] = trajectory


def read_earlier(folder: RunFolder, recorder: Recorder, *, done: int, evaluated: Container[str]) -> Earlier:
    """Read what the folder's earlier attempts finished, and count what a killed one had no time to count.

    Args:
        folder: The run's.
        recorder: Has counted as many of the folder's episodes as `run.json` knew of.
        done: Steps whose weights are those to go on with.
        evaluated: Evaluations whose result is known.
    """
    earlier = Earlier()
    if folder.attempt == 0:
        return earlier
    counted = recorder.totals.episodes
    for index, record in enumerate(read_traces(folder.path / "trajectories.jsonl")):
        phase, step = record["phase"], record["step"]
        wanted = step > done if phase == TRAIN else phase not in evaluated
        if not wanted and index < counted:
            continue
        trajectory = from_record(record)
        if index >= counted:
            recorder.count(trajectory)
        if wanted:
            earlier.add(phase, step, trajectory)
    return earlier
