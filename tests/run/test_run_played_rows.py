"""What is played of rows of which none, or all that there are, may be asked for."""

import json

import pytest

from tiltyard.cli import main

ROWS = {
    "environment": (
        "{env_type: rollout, dataset: rows.jsonl, rubric_file_path: reward.py, train_test_split: 1, "
        "prompt_template: {user_0: '{question}'}}"
    )
}


@pytest.fixture
def manifest(write_manifest, tmp_path):
    """Four rows, none held out; the reward's file and the evaluation as given."""

    def write(reward="def reward(completion):\n    return 1.0\n", **sections):
        rows = [{"question": str(i), "answer": str(i)} for i in range(4)]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "reward.py").write_text(reward)
        training = "{steps: 1, batch_size: 1}"
        return str(write_manifest(**{"training": training, **ROWS, **sections}))

    return write


@pytest.mark.parametrize("command", [["eval"], ["eval", "--tasks", "2"], ["rollout", "--split", "held-out"]])
def test_rows_of_which_none_is_held_out_cannot_be_evaluated_on(manifest, tmp_path, capsys, command):
    """The message says so, and what to do; no folder is left."""
    assert main([command[0], manifest(), *command[1:], "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "no rows are held out to evaluate on; set environment.train_test_split below 1, or play" in said
    assert not (tmp_path / "out").exists()


def test_an_evaluation_of_no_tasks_says_where_that_stands(manifest, tmp_path, capsys):
    """The manifest's number is meant for training; a command that only evaluates needs another."""
    env = "{env_type: rollout, entrypoint: 'env.py:Env', max_turns: 3}"
    path = manifest(environment=env, training="{steps: 1, batch_size: 1, eval: {tasks: 0}}")
    assert main(["eval", path, "--out", str(tmp_path / "out")]) == 2
    assert "training.eval.tasks is 0, so that there is nothing to evaluate on; give --tasks" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "rollout"])
def test_a_reward_that_exits_does_not_end_the_command_as_a_success(manifest, tmp_path, capsys, command):
    """`exit(0)` in a reward function is told, with its place; no episode is worth 0 for it."""
    path = manifest(reward="def reward(completion):\n    exit(0)\n")
    assert main([command, path, "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"tiltyard: {tmp_path}/reward.py, line 2, asked Python to exit (SystemExit: 0)")
