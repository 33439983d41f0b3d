"""Whole episodes, and a training run, of which a machine is lost: with Ray's own settings, under which it would notice
that only after 14 seconds; and a cluster that this process has left."""

import json
import re

import pytest
from pool_clusters import CLUSTER, run_script

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]

LOSE = """
        def parent(pid):
            with open(f"/proc/{pid}/stat") as file:
                return int(file.read().rpartition(")")[2].split()[1])

        def lives(pid):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    return file.read().rpartition(")")[2].split()[0] != "Z"
            except OSError:
                return False

        def on_other(pids):
            return [pid for pid in pids if parent(pid) == daemon]

        def lose(pids):
            \"""Lose the other machine, and wait until these processes, which were on it, are gone.\"""
            cluster.remove_node(other, allow_graceful=False)
            while any(map(lives, pids)):
                time.sleep(0.01)

        other = cluster.add_node(num_cpus=2)
        daemon = other.all_processes["raylet"][0].process.pid
        cluster.wait_for_nodes()
"""


def test_a_machine_that_is_lost_costs_the_episodes_that_were_on_it(tmp_path):
    """They come back as failed, the others as they are anyway; its workers are replaced on the machine that is left."""
    done = run_script(
        tmp_path,
        CLUSTER
        + LOSE
        + """
        from functools import partial
        from pathlib import Path
        from pool_episode_envs import GateEnv
        from tiltyard import EpisodeOrder, Limits, Placement, RolloutWorkers, Task
        from tiltyard.testing.scripted import ScriptedAsyncPolicy

        gate, struck = Path("gate").absolute(), []

        def strike():
            while len(found := list(gate.parent.glob("waits-*"))) < 8:
                time.sleep(0.01)
            at = {int(seed): int(pid) for _, seed, pid in (path.name.split("-") for path in found)}
            there = on_other(set(at.values()))
            struck.append(sorted(seed for seed in at if at[seed] in there))
            lose(there)
            gate.touch()

        placement = Placement("ray", 4, RayOptions(address=cluster.address, num_cpus=0.5))
        policy, limits = ScriptedAsyncPolicy(["hello"] * 4), Limits(max_turns=4)
        orders = [EpisodeOrder(Task(seed=seed), str(seed)) for seed in (*range(1, 17, 2), *range(2, 34, 2))]
        with RolloutWorkers(partial(GateEnv, str(gate)), policy, limits, placement=placement, concurrency=8) as workers:
            threading.Thread(target=strike).start()
            found = workers.run(orders)
            lost = sorted(one.task.seed for one in found if one.ending == "lost_session")
            print("LOST:", len(lost), lost == struck[0], workers.lost, {one.reward for one in found if one.failed})
            print("OTHERS:", {(str(one.ending), one.reward) for one in found if not one.failed})
            again = workers.run(orders)
            print("AGAIN:", {str(one.ending) for one in again}, workers.replaced)
        print("LEAKED:", workers.report().leaked)
        ray.shutdown()
        cluster.shutdown()
        """,
    )
    said = dict(re.findall(r"^([A-Z]+): (.*)$", done.stdout, re.MULTILINE))
    assert said == {
        "LOST": "4 True 4 {None}",
        "OTHERS": "{('done', 1.0)}",
        "AGAIN": "{'done'} 2",
        "LEAKED": "0",
    }, done.stderr


GATED = '''
"""Twenty rows, two turns; until the gate is open, every second turn waits at it."""

import os
import time
from pathlib import Path

HERE = Path(__file__).parent


class Env:
    dataset_size = 20

    def reset(self, seed=None, row_index=None, evaluation=None):
        self.row, self.turn = row_index, 0
        return f"row {row_index}", {}

    def step(self, action):
        self.turn += 1
        if self.turn == 2 and not (HERE / "gate").exists():
            (HERE / f"waits-{os.getpid()}").touch()
            while not (HERE / "gate").exists():
                time.sleep(0.01)
        return "more", sum(c.isalpha() for c in action) / 8, self.turn == 2, False, {}
'''


def test_a_training_run_survives_a_machine_that_is_lost(write_manifest, read_lines, tmp_path):
    """The episodes that were on it failed, without a reward, and the run goes on to its last step."""
    write_manifest(GATED)
    done = run_script(
        tmp_path,
        CLUSTER
        + LOSE
        + """
        import json
        from pathlib import Path
        from tiltyard.build import train_manifest
        from tiltyard.manifest import load_manifest, manifest_to_yaml
        from tiltyard.train.observer import SilentObserver
        from tiltyard.train.run_folder import RunFolder

        def strike():
            while not (there := on_other(int(path.name.split("-")[1]) for path in Path().glob("waits-*"))):
                time.sleep(0.01)
            lose(there)
            Path("gate").touch()

        placed = ["rollout.backend=ray", "rollout.workers=4", f"rollout.ray_address={cluster.address}"]
        manifest = load_manifest(Path("m.yaml"), [*placed, "training.eval.tasks=0"])
        folder = RunFolder.create(Path("out"), manifest_to_yaml(manifest))
        threading.Thread(target=strike).start()
        summary = train_manifest(manifest, folder, SilentObserver())
        print("SAID:", json.dumps([summary[key] for key in ("failed", "leaked", "steps_done")]))
        ray.shutdown()
        cluster.shutdown()
        """,
    )
    said = re.search(r"^SAID: (.*)$", done.stdout, re.MULTILINE)
    assert said is not None, done.stderr[-6000:]
    failed, leaked, steps = json.loads(said[1])
    assert (leaked, steps) == (0, 3)
    lost = [one for one in read_lines(tmp_path / "out" / "trajectories.jsonl") if one["failed"]]
    assert [(one["ending"], one["reward"], one["step"]) for one in lost] == [("lost_session", None, 1)] * failed
    assert 1 <= failed < 8


def test_a_pool_whose_cluster_was_left_starts_no_other(tmp_path):
    """Ray would by itself, at the next call; one that other machines can reach."""
    done = run_script(
        tmp_path,
        """
        import ray
        from pool_envs import CountEnv
        from tiltyard import EnvPool
        if __name__ == "__main__":
            pool = EnvPool(2, env_factory=CountEnv, num_workers=1, backend="ray")
            pool.reset_batch([0, 1])
            ray.shutdown()
            print([type(result).__name__ for result in pool.step_batch([0, 1], ["add"] * 2, [{}] * 2)])
            print(*pool.reset_batch([0]))
            pool.close()
            print(ray.is_initialized())
        """,
    )
    steps, reset, left = done.stdout.splitlines()
    assert steps == "['ResetNeededError', 'ResetNeededError']"
    assert "Ray was shut down in this process" in reset
    assert left == "False"
