"""Case CK-01: the order of the rows is the same in every process."""

import json
import subprocess
import sys

import pytest

from tiltyard.rollout.tasks import TaskAssigner

RESUME = """
import json, sys
from tiltyard.rollout.tasks import TaskAssigner
assigner = TaskAssigner(6, 2, seed=7)
assigner.load_state_dict(json.loads(sys.argv[1]))
print(json.dumps([[task.row_index, task.seed, task.epoch] for _ in range(4) for task in assigner.next()]))
"""


@pytest.mark.parametrize("hash_seed", ["0", "1"])
@pytest.mark.parametrize("steps", [0, 2, 3])
def test_a_new_process_goes_on_with_the_rows_of_an_unbroken_run(steps, hash_seed):
    """CK-01 b, d: within an epoch and at its end, whatever the process's hash seed."""
    broken, unbroken = TaskAssigner(6, 2, seed=7), TaskAssigner(6, 2, seed=7)
    for assigner in (broken, unbroken):
        for _ in range(steps):
            assigner.next()
    state = json.dumps(broken.state_dict())
    command = [sys.executable, "-c", RESUME, state]
    resumed = subprocess.run(command, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True)
    expected = [[task.row_index, task.seed, task.epoch] for _ in range(4) for task in unbroken.next()]
    assert json.loads(resumed.stdout) == expected
