"""The best checkpoint: that of the best evaluation, beside the last ones."""

import json

import pytest

from tiltyard.export import find_checkpoint
from tiltyard.train.best import Best, best_of
from tiltyard.train.checkpoint import best_checkpoint, saved_steps

STEPS = (
    "{steps: 4, batch_size: 2, learning_rate: 1e-3, save_every: 1, keep_checkpoints: 1, "
    "eval: {tasks: 1, every: 1, before: true}}"
)

SCRIPTED = """
from pathlib import Path


class Env:
    dataset_size = 20

    def reset(self, seed=None, row_index=None, evaluation=None):
        self.evaluation = evaluation
        return "go", {}

    def step(self, action):
        if not self.evaluation:
            return "", float(len(action)), True, False, {}
        left = Path(__file__).with_name("scores")
        first, *rest = left.read_text().split()
        left.write_text(" ".join(rest))
        return "", float(first), True, False, {}
"""


@pytest.fixture
def scored(write_manifest, tmp_path):
    """Write a manifest whose evaluations come out as it is told; the first is that before the first step."""

    def write(*scores):
        (tmp_path / "scores").write_text(" ".join(map(str, scores)))
        return write_manifest(
            SCRIPTED,
            training=STEPS,
            environment="{env_type: rollout, entrypoint: 'env.py:Env', max_turns: 1}",
            rollout="{max_tokens_per_turn: 32, length_reward: 0}",
        )

    return write


def evaluation(step, mean, metric="reward"):
    return {"step": step, "mean": mean, "metric": metric}


def test_the_best_and_the_last_checkpoint_are_kept(scored, train, tmp_path):
    """Also where the best is older than all that would be kept."""
    summary = train(scored(9, 1, 5, 3, 4), tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    assert saved_steps(folder) == [2, 4]
    assert best_checkpoint(folder) == folder / "step-00000002"
    assert summary["best"] == {"step": 2, "phase": "eval_2", "metric": "reward", "value": 5.0}


def test_of_equal_evaluations_the_earlier_one_is_the_best(scored, train, tmp_path):
    """A tie is no reason to move."""
    train(scored(0, 3, 2, 3, 3), tmp_path / "run")
    assert find_checkpoint(tmp_path / "run", "best").name == "step-00000001"


def test_the_last_evaluation_can_be_the_best(scored, train, tmp_path):
    """Its checkpoint is the last one too."""
    train(scored(0, 1, 2, 3, 4), tmp_path / "run")
    assert saved_steps(tmp_path / "run" / "checkpoints") == [4]
    assert json.loads((tmp_path / "run" / "checkpoints" / "best.json").read_text())["step"] == 4


def test_a_resumed_run_keeps_the_best_of_before(scored, train, tmp_path):
    """The best is not forgotten with the process that found it."""
    path = scored(0, 1, 7, 5, 6, 6, 6)
    train(path, tmp_path / "run", "training.steps=3")
    summary = train(None, tmp_path / "run", "training.steps=5", resume=True)
    assert summary["best"]["step"] == 2
    assert saved_steps(tmp_path / "run" / "checkpoints") == [2, 5]


def test_the_untrained_model_is_never_the_best():
    """There is no checkpoint of it, and no need of one."""
    assert best_of({"eval_before": evaluation(0, 9.0)}, {0}) is None


def test_an_evaluation_whose_weights_are_gone_is_not_the_best():
    """A best that cannot be loaded is of no use."""
    evaluations = {"eval_1": evaluation(1, 9.0), "eval_2": evaluation(2, 1.0), "eval_3": evaluation(3, None)}
    assert best_of(evaluations, {2, 3}) == Best(2, "eval_2", "reward", 1.0)


def test_of_losses_the_lowest_is_the_best():
    """Everything else is the better the higher it is."""
    evaluations = {"eval_1": evaluation(1, 2.0, "loss"), "eval_2": evaluation(2, 1.0, "loss")}
    best = best_of(evaluations, {1, 2})
    assert best is not None
    assert best.step == 2
