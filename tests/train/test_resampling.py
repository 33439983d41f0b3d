"""DAPO's dynamic sampling: groups that teach nothing are followed by others, until the batch is full."""

import sys
import warnings
from operator import itemgetter

import pytest

from tiltyard import load_manifest, load_model
from tiltyard.build import Given, train_manifest
from tiltyard.errors import ConfigurationError
from tiltyard.manifest import manifest_to_yaml
from tiltyard.models.trainable import make_trainable
from tiltyard.rollout.groups import Group
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.testing.model import tiny_model
from tiltyard.testing.processes import run_together
from tiltyard.tokens.transcript import Transcript
from tiltyard.train.algorithms import CISPO, GRPO, GSPO, LLMREINFORCE
from tiltyard.train.batch import build_batch
from tiltyard.train.learner import Learner
from tiltyard.train.observer import SilentObserver
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.train.resampling import filled, shortage
from tiltyard.train.run_folder import RunFolder
from tiltyard.types import Task

DAPO = GRPO(group_size=2, zero_variance="drop", resample_rounds=3)

HALF_FLAT = '''
"""Every other row pays the same for any answer, the others by its length; nothing is held out.

A file `stop` beside this one holds a number: so many answers later Ctrl-C is pressed, once.
"""

import os
import signal
from pathlib import Path

stop = Path(__file__).with_name("stop")


class Env:
    dataset_size = 40
    answers = 0

    def reset(self, seed=None, row_index=None, evaluation=None):
        self.row = row_index
        return f"row {row_index}", {}

    def step(self, action):
        Env.answers += 1
        if stop.exists() and Env.answers >= int(stop.read_text()):
            stop.unlink()
            os.kill(os.getpid(), signal.SIGINT)
        return "", float(len(action)) if self.row % 2 else 1.0, True, False, {}
'''

TRAINING = "{steps: 3, batch_size: 4, seed: 3, learning_rate: 1e-3, save_every: 1, eval: {tasks: 0}}"


def group(seed, *rewards):
    task = Task(seed=seed)
    return Group(f"group {seed}", task, tuple(episode(f"{seed}-{i}", task, r) for i, r in enumerate(rewards)))


def episode(name, task, reward):
    transcript = Transcript()
    transcript.observe([1, 2])
    transcript.sample([7, 8], [-0.5, -0.5])
    ending = Ending.LOST_SESSION if reward is None else Ending.DONE
    return Trajectory(name, task, ending, rewards=(reward,), error=None if reward is not None else "it is gone",
                      transcript=transcript)  # fmt: skip


class Groups:
    """Deals groups that are there, and notes how many were asked for."""

    def __init__(self, *groups):
        self.left = list(groups)
        self.asked = []

    def __call__(self, count):
        self.asked.append(count)
        found, self.left = self.left[:count], self.left[count:]
        return found


def test_only_the_groups_that_are_missing_are_sampled():
    """Two of three teach nothing, then one of two, then none of one: every group that teaches is kept."""
    first = [group(0, 1, 0), group(1, 1, 1), group(2, 0, 0)]
    more = Groups(group(3, 1, 1), group(4, 1, 0), group(5, 0, 1))
    found = filled(first, more, DAPO)
    assert more.asked == [2, 1]
    assert [g.task.seed for g in found] == [0, 1, 2, 3, 4, 5]
    batch = build_batch(found, DAPO)
    assert [[row.episode_id for row in rows] for rows in batch.groups if rows] == [
        ["0-0", "0-1"],
        ["4-0", "4-1"],
        ["5-0", "5-1"],
    ]
    assert shortage(batch, 3, DAPO) is None


def test_a_full_batch_is_followed_by_nothing():
    """No group more than was asked for."""
    more = Groups()
    assert len(filled([group(0, 1, 0)], more, DAPO)) == 1
    assert more.asked == []


def test_the_rounds_are_bounded_and_what_is_missing_then_is_told():
    """The batch has what there is; the text says how many groups were sampled for it, and what to do."""
    more = Groups(*(group(seed, 1, 1) for seed in range(10, 20)))
    batch = build_batch(filled([group(0, 1, 0), group(1, 0, 0)], more, DAPO), DAPO)
    assert (more.asked, batch.teaching) == ([1, 1, 1], 1)
    told = shortage(batch, 2, DAPO)
    assert told is not None
    assert "learns from 1 groups in place of 2: of the 5 that were sampled in 4 rounds 4 had equal rewards" in told
    assert "Raise algorithm.resample_rounds" in told


def test_a_group_that_failures_left_without_a_comparison_is_replaced_too():
    """One reward is no comparison: the group teaches nothing."""
    more = Groups(group(1, 1, 0))
    assert len(filled([group(0, 1, None)], more, DAPO)) == 2


def test_without_rounds_nothing_is_sampled_again():
    """The default of every algorithm, and of "drop"."""
    more = Groups()
    for algorithm in (GRPO(), GRPO(zero_variance="drop"), LLMREINFORCE()):
        assert len(filled([group(0, 1, 1)], more, algorithm)) == 1
        assert shortage(build_batch([group(0, 1, 1)], algorithm), 1, algorithm) is None
    assert more.asked == []


@pytest.mark.parametrize("algorithm", [GRPO, GSPO, CISPO])
def test_resampling_needs_groups_to_be_dropped(algorithm):
    """Otherwise the groups that are replaced would be in the mean beside those that replace them."""
    with pytest.raises(ConfigurationError, match="resample_rounds needs zero_variance 'drop', got 'count'"):
        algorithm(resample_rounds=2)
    with pytest.raises(ConfigurationError, match="resample_rounds must be an integer >= 0, got -1"):
        algorithm(resample_rounds=-1, zero_variance="drop")


def test_minibatches_are_dealt_the_groups_that_are_left():
    """Groups that were dropped, wherever they stood, make no minibatch smaller than another."""
    algorithm = GRPO(group_size=2, zero_variance="drop", resample_rounds=1, minibatches=2)
    groups = [group(0, 1, 1), group(1, 1, 1), group(2, 1, 0), group(3, 0, 1)]
    learner = Learner(make_trainable(tiny_model(), "full"), algorithm, OptimiserSettings(learning_rate=1e-3))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="sampler and trainer disagree")
        learner.update(build_batch(groups, algorithm))
    assert learner.step == 2


@pytest.fixture
def manifest(write_manifest):
    def write(rounds):
        algorithm = f"{{group_size: 4, zero_variance: drop, resample_rounds: {rounds}}}"
        environment = "{env_type: rollout, entrypoint: 'env.py:Env', max_turns: 1}"
        return write_manifest(HALF_FLAT, environment=environment, algorithm=algorithm, training=TRAINING)

    return write


def seen(read_lines, run):
    """Which task each episode had, and what was sampled; of one that was played twice, the last."""
    lines = read_lines(run / "trajectories.jsonl")
    return {(line["step"], line["episode_id"]): (line["task"], line["ids"]) for line in lines}


def learned(read_lines, run):
    """The figures of each step that do not depend on the clock; of one that was played twice, the last."""
    lines = {line["step"]: line for line in read_lines(run / "metrics.jsonl")}
    apart = ("seconds", "tokens_per_s", "attempt")
    return [{k: v for k, v in lines[step].items() if k not in apart} for step in sorted(lines)]


def test_a_run_fills_its_batches_and_says_with_how_many_groups(manifest, train, read_lines, tmp_path):
    """Every row is dealt once an epoch, the replaced ones as well; the figures are those of all episodes played."""
    train(manifest(9), tmp_path / "run")
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    episodes = read_lines(tmp_path / "run" / "trajectories.jsonl")
    assert [line["teaching_groups"] for line in lines] == [4, 4, 4]
    assert all(line["groups"] == 4 + line["resampled_groups"] for line in lines)
    assert all(line["zero_variance_groups"] + line["small_groups"] == line["resampled_groups"] for line in lines)
    assert all(line["zero_variance_groups"] for line in lines)
    assert [line["episodes"] for line in lines] == [4 * line["groups"] for line in lines]
    assert len(episodes) == sum(line["episodes"] for line in lines)
    assert len({line["episode_id"] for line in episodes}) == len(episodes)
    rows = [line["task"]["row_index"] for line in sorted(episodes, key=itemgetter("episode_id"))][::4]
    assert len(set(rows)) == len(rows)


def test_a_run_whose_batches_stay_short_says_so_once(manifest, train, read_lines, tmp_path):
    """It learns from what there is."""
    with pytest.warns(UserWarning, match="step . learns from . groups in place of 4") as told:
        train(manifest(1), tmp_path / "run")
    assert len([w for w in told if "in place of" in str(w.message)]) == 1
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert any(0 < line["teaching_groups"] < 4 and not line["skipped"] for line in lines)


@pytest.mark.parametrize(("answers", "asynchronous"), [(18, False), (30, False), (30, True)])
def test_a_run_interrupted_among_its_further_groups_goes_on_exactly(
    answers, asynchronous, manifest, train, read_lines, tmp_path
):
    """CK-01: what was finished of every round is used again, and the rest is what the unbroken run had."""
    options = ("training.steps=2", f"training.asynchronous={str(asynchronous).lower()}")
    path = manifest(9)
    train(path, tmp_path / "whole", *options)
    (tmp_path / "stop").write_text(str(answers + count(path)))
    broken = train(path, tmp_path / "run", *options)
    assert broken["interrupted"]
    kept = read_lines(tmp_path / "run" / "trajectories.jsonl")
    train(None, tmp_path / "run", resume=True)
    assert read_lines(tmp_path / "run" / "trajectories.jsonl")[: len(kept)] == kept
    assert seen(read_lines, tmp_path / "run") == seen(read_lines, tmp_path / "whole")
    assert learned(read_lines, tmp_path / "run") == learned(read_lines, tmp_path / "whole")


def test_two_processes_fill_a_batch_as_one_does(manifest, train, model_folder, read_lines, tmp_path):
    """They agree on what is missing, and share it: the same tasks, episodes and groups that teach."""
    path, one_step = manifest(9), "training.steps=1"
    train(path, tmp_path / "one", one_step)
    settings, models = load_manifest(path, [one_step]), [load_model(str(model_folder)) for _ in range(2)]

    def run(processes):
        folder = RunFolder.shared(lambda: RunFolder.create(tmp_path / "two", manifest_to_yaml(settings)), processes)
        return train_manifest(settings, folder, SilentObserver(), Given(loaded=models[processes.rank]), processes)

    run_together(2, run)
    one, two = (seen(read_lines, tmp_path / run) for run in ("one", "two"))
    assert {key: task for key, (task, _) in two.items()} == {key: task for key, (task, _) in one.items()}
    counts = ("groups", "teaching_groups", "resampled_groups", "episodes", "optimiser_step")
    lines = [read_lines(tmp_path / run / "metrics.jsonl") for run in ("one", "two")]
    assert len({str([[line[name] for name in counts] for line in run]) for run in lines}) == 1


def count(path):
    """How many answers the environment of this manifest has had in this process."""
    (module,) = [m for m in sys.modules.values() if getattr(m, "__file__", None) == str(path.with_name("env.py"))]
    return module.Env.answers


def test_an_asynchronous_run_fills_its_batches_too(manifest, train, read_lines, tmp_path):
    """Each batch ahead is filled with the weights that it began with."""
    train(manifest(9), tmp_path / "run", "training.asynchronous=true")
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [(line["teaching_groups"], line["staleness_max"]) for line in lines] == [(4, 0), (4, 1), (4, 1)]
