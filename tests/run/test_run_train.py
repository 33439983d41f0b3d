"""A whole run: from a manifest on disk to a run folder."""

import json

import pytest

from tiltyard.manifest import load_manifest


def test_a_run_leaves_a_whole_folder(write_manifest, train, read_lines, tmp_path):
    """Every file is there, and their figures agree."""
    path, run = write_manifest(), tmp_path / "run"
    summary = train(path, run)
    episodes, metrics = read_lines(run / "trajectories.jsonl"), read_lines(run / "metrics.jsonl")
    assert load_manifest(run / "config.yaml") == load_manifest(path)
    assert json.loads((run / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert sorted(folder.name for folder in (run / "checkpoints").glob("step-*")) == ["step-00000002", "step-00000003"]
    assert [(line["step"], line["episodes"]) for line in metrics] == [(1, 8), (2, 8), (3, 8)]
    assert len(episodes) == summary["episodes"] == 4 + 3 * 8 + 4
    assert summary["sampled_tokens"] == sum(sum(line["mask"]) for line in episodes)
    assert summary["truncated"] == sum(line["truncated"] for line in episodes)
    assert (summary["steps_done"], summary["failed"], summary["leaked"], summary["interrupted"]) == (3, 0, 0, False)


def test_a_step_says_how_the_model_did_and_what_it_learned_from(write_manifest, train, read_lines, tmp_path):
    """Rewards, rates, tokens, seconds, and the update's own figures stand in one line, and none is NaN."""
    train(write_manifest(), tmp_path / "run", "training.eval.tasks=0")
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    first = read_lines(tmp_path / "run" / "metrics.jsonl")[0]
    played = [line for line in read_lines(tmp_path / "run" / "trajectories.jsonl") if line["step"] == 1]
    rewards = [line["reward"] for line in played if line["reward"] is not None]
    assert first["reward"] == pytest.approx(sum(rewards) / len(rewards))
    assert first["success"] == pytest.approx(sum(bool(line["success"]) for line in played) / len(played))
    assert (first["groups"], first["granularity"], first["optimiser_step"]) == (2, "turn", 1)
    assert first["loss"] is not None
    assert first["grad_norm"] > 0
    assert first["sampler_difference_max"] < 1e-3
    assert set(first["seconds"]) == {"rollout", "update", "step"}
    assert "NaN" not in text


def test_the_ledger_covers_every_episode(write_manifest, train, tmp_path):
    """It counts prompts that extended their past, and compares sampler and trainer."""
    summary = train(write_manifest(), tmp_path / "run")
    ledger = summary["ledger"]
    assert (ledger["ok"], ledger["forks"], ledger["episodes"]) == (True, 0, summary["episodes"])
    assert ledger["extended"] == ledger["turns"] - ledger["episodes"]
    assert ledger["compared"] > 0


def test_evaluation_plays_the_same_held_out_tasks_before_and_after(write_manifest, train, read_lines, tmp_path):
    """They are of the held-out split, each once, and never in training."""
    summary = train(write_manifest(), tmp_path / "run", "training.eval.every=2")
    played = read_lines(tmp_path / "run" / "trajectories.jsonl")
    tasks = {phase: [] for phase in ("eval_before", "train", "eval_2", "eval_after")}
    for line in played:
        tasks[line["phase"]].append((line["task"]["row_index"], line["task"]["seed"], line["task"]["evaluation"]))
    assert sorted(tasks["eval_before"]) == sorted(tasks["eval_2"]) == sorted(tasks["eval_after"])
    assert [row for row, _, held_out in sorted(tasks["eval_after"]) if held_out] == [0, 1, 2, 3]
    assert not {seed for _, seed, _ in tasks["eval_after"]} & {seed for _, seed, _ in tasks["train"]}
    for name in ("eval_before", "eval_after"):
        assert {"mean", "low", "high", "n"} <= summary[name].keys()
    assert summary["evaluations"]["eval_2"]["step"] == 2


def test_greedy_evaluation_leaves_training_sampled(write_manifest, train, read_lines, tmp_path):
    """Temperature 0 holds for the evaluation alone: equal tasks give equal answers there, a group's members differ."""
    train(write_manifest(), tmp_path / "run", "training.eval.temperature=0", "training.learning_rate=1e-9")
    played = read_lines(tmp_path / "run" / "trajectories.jsonl")
    before, after = ([e["ids"] for e in played if e["phase"] == f"eval_{w}"] for w in ("before", "after"))
    assert sorted(before) == sorted(after)
    group = [tuple(line["ids"]) for line in played if line["group"] == "00000-000"]
    assert len(set(group)) == 4


@pytest.mark.parametrize("what", ["last:1", "lora"])
def test_less_than_the_whole_model_can_learn(what, write_manifest, train, read_lines, tmp_path):
    """Layers and adapters sample and learn on the same path, and sampler and trainer agree."""
    train(write_manifest(), tmp_path / "run", f"model.train={what}", "algorithm.kl_coef=0.1", "training.eval.tasks=0")
    last = read_lines(tmp_path / "run" / "metrics.jsonl")[-1]
    assert last["optimiser_step"] == 3
    assert last["kl"] > 0
    assert last["sampler_difference_max"] < 1e-3


def test_without_held_out_tasks_nothing_is_evaluated(write_manifest, train, tmp_path):
    """The summary says so with null."""
    summary = train(write_manifest(), tmp_path / "run", "training.eval.tasks=0", "training.steps=1")
    assert (summary["eval_before"], summary["eval_after"], summary["evaluations"]) == (None, None, {})


def test_when_the_manifest_does_not_say_all_held_out_rows_are_played(write_manifest, letters, train, tmp_path):
    """Up to 64 of them; each once."""
    path = write_manifest(letters + "    evaluation_size = 6\n")
    summary = train(
        path, tmp_path / "run", "training.eval.tasks=null", "training.steps=1", "training.eval.before=false"
    )
    assert (summary["eval_before"], summary["eval_after"]["episodes"]) == (None, 6)


def test_both_evaluations_are_of_success_where_only_training_spoke_of_it(write_manifest, train, letters, tmp_path):
    """Otherwise a success rate before would be compared with a mean reward after."""
    silent = letters.replace(
        '{"success": share > 0.5, "valid": share > 0}', '{"success": False} if self.speaks else {}'
    ).replace("self.turn = 0\n", "self.turn, self.speaks = 0, not evaluation\n")
    summary = train(write_manifest(silent), tmp_path / "run", "training.steps=1")
    assert [summary[name]["metric"] for name in ("eval_before", "eval_after")] == ["success", "success"]
    assert [summary[name]["mean"] for name in ("eval_before", "eval_after")] == [0.0, 0.0]
