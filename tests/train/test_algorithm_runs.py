"""Whole runs with each algorithm: from a manifest to a folder, and on from there."""

import pytest

from tiltyard.train.algorithms import ALGORITHMS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_resumed_run_is_the_unbroken_one(name, write_manifest, train, read_lines, tmp_path):
    """The value head and its optimiser go on where they were: the same losses, to the bit."""
    path = write_manifest(algorithm=f"{{name: {name}, group_size: 2, epochs: 2}}")
    options = ("training.eval.tasks=0", "training.save_every=2")
    train(path, tmp_path / "whole", *options, "training.steps=4")
    train(path, tmp_path / "parts", *options, "training.steps=2")
    train(None, tmp_path / "parts", "training.steps=4", resume=True)
    whole, parts = (read_lines(tmp_path / run / "metrics.jsonl") for run in ("whole", "parts"))
    figures = ("loss", "grad_norm", "reward", "kl", "value_loss", "explained_variance", "entropy")
    assert [[line[key] for key in figures] for line in whole] == [[line[key] for key in figures] for line in parts]
    assert (whole[-1]["value_loss"] is None) is (name != "LLMPPO")


def test_ppo_plays_one_episode_of_each_task(write_manifest, train, read_lines, tmp_path):
    """Its default: nothing is compared within a group, so a group of one is no small group."""
    train(write_manifest(algorithm="{name: LLMPPO}"), tmp_path / "run", "training.eval.tasks=0")
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [(line["episodes"], line["small_groups"], line["skipped"]) for line in lines] == [(2, 0, False)] * 3


@pytest.mark.parametrize("what", ["last:1", "lora"])
def test_a_value_head_stands_beside_whatever_trains(what, write_manifest, train, read_lines, tmp_path):
    """Layers and adapters, with the divergence from the reference in the reward."""
    algorithm = "{name: LLMPPO, kl_coef: 0.1, kl_in: reward, value_trains_model: true}"
    train(write_manifest(algorithm=algorithm), tmp_path / "run", f"model.train={what}", "training.eval.tasks=0")
    last = read_lines(tmp_path / "run" / "metrics.jsonl")[-1]
    assert (last["optimiser_step"], last["kl"] is None, last["value_loss"] > 0) == (3, False, True)
