"""Preference training with a real model: the example gets its held-out pairs right."""

from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "dpo"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_example_gets_better_on_held_out_pairs_in_a_few_steps(train, tmp_path):
    """A plain answer is better than a flattering one."""
    few = ("training.steps=6", "training.eval.every=0", "training.eval.tasks=30", "training.learning_rate=1e-4")
    summary = train(EXAMPLE / "dpo.yaml", tmp_path / "run", *few)
    before, after = summary["eval_before"], summary["eval_after"]
    assert before["mean"] == 0.5
    assert after["low"] > before["mean"]
    assert after["margin"]["low"] > 0
