"""The countdown example: its rows, its reward, and its manifest with a model that is small enough for a test."""

import json
import sys
from pathlib import Path

import pytest

from tiltyard.manifest import load_manifest
from tiltyard.manifest.rows_env import rows_env_factory
from tiltyard.rewards import Answer
from tiltyard.rollout.entrypoint import load_file
from tiltyard.rollout.rubric_file import load_rubric

FOLDER = Path(__file__).parents[2] / "examples" / "countdown"
ROWS = [json.loads(line) for line in (FOLDER / "rows.jsonl").read_text().splitlines()]


def test_the_rows_are_those_that_the_script_writes():
    """Whoever runs it gets the file that is shipped."""
    assert load_file(FOLDER / "make_rows.py").rows(600) == ROWS
    assert str(FOLDER) not in sys.path


def test_each_row_is_solved_by_exactly_one_operation():
    """So that a guess of the operation is right a third of the time."""
    for row in ROWS:
        a, b = row["nums"]
        assert [a + b, a - b, a * b].count(row["target"]) == 1
    assert len({json.dumps(row) for row in ROWS}) == 600


@pytest.mark.parametrize(
    ("completion", "reward", "parts"),
    [
        ("12 - 5 = 7", 1.0, {"form": 1.0, "numbers": 1.0, "value": 1.0}),
        (" 12-5 ", 1.0, {"form": 1.0, "numbers": 1.0, "value": 1.0}),
        ("5 - 12 = 7", 0.5, {"form": 1.0, "numbers": 1.0, "value": 0.0}),
        ("12 + 5 = 7", 0.5, {"form": 1.0, "numbers": 1.0, "value": 0.0}),
        ("10 - 3 = 7", 0.25, {"form": 1.0, "numbers": 0.0}),
        ("12 - 5 = 7.", 0.0, {"form": 0.0}),
        ("The answer is 12 - 5.", 0.0, {"form": 0.0}),
    ],
)
def test_the_reward_goes_as_far_as_the_answer_is_right(completion, reward, parts):
    """Form, then numbers, then value; each is asked when the one before it passed."""
    verdict = load_rubric(FOLDER / "reward.py", "RUBRIC").score(Answer(completion, {"nums": [12, 5], "target": 7}))
    assert (verdict.reward, dict(verdict.parts)) == (reward, parts)


def test_the_prompt_has_the_row_and_shows_how_to_answer():
    """Two answers are shown before the question."""
    env = rows_env_factory(load_manifest(FOLDER / "countdown.yaml").environment)()
    _, info = env.reset(row_index=0)
    roles = [message["role"] for message in info["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert info["messages"][-1]["content"] == f"Numbers: {env.row['nums']}. Target: {env.row['target']}."
    assert (env.dataset_size, env.evaluation_size) == (450, 150)


def test_the_manifest_trains(model_folder, train, tmp_path, read_lines):
    """As shipped, but for a tiny model and fewer steps."""
    changes = (f"model.name={model_folder}", "model.train=full", "training.steps=1", "training.batch_size=2")
    summary = train(FOLDER / "countdown.yaml", tmp_path / "run", *changes, "training.eval.tasks=2")
    assert summary["steps"] == 1
    assert len(read_lines(tmp_path / "run" / "metrics.jsonl")) == 1
