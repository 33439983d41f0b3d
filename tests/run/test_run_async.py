"""Asynchronous runs: the next batch is sampled while the last one is learned from."""

import os
import signal
import threading

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tiltyard.build import Given, run_parts, train_manifest
from tiltyard.errors import GroupMismatchError, ManifestError
from tiltyard.manifest import Manifest, load_manifest, manifest_to_yaml
from tiltyard.manifest.probing import env_factory, probe
from tiltyard.rollout.groups import Group
from tiltyard.rollout.trace import from_record
from tiltyard.train.batch import build_batch
from tiltyard.train.observer import SilentObserver
from tiltyard.train.processes import OneProcess
from tiltyard.train.run_folder import RunFolder

ASYNC = ("training.asynchronous=true", "training.steps=4", "training.save_every=1", "training.keep_checkpoints=9")


@pytest.fixture(scope="module")
def run(manifest_in, train, tmp_path_factory):
    """An asynchronous run of four steps with an evaluation in between, all checkpoints kept."""
    folder = tmp_path_factory.mktemp("async")
    path = manifest_in(folder)
    return path, folder / "run", train(path, folder / "run", *ASYNC, "training.eval.every=2")


def by_step(read_lines, run, phase="train"):
    """The records of each step's episodes, by id."""
    found: dict[int, dict] = {}
    for record in read_lines(run / "trajectories.jsonl"):
        if record["phase"] == phase:
            found.setdefault(record["step"], {})[record["episode_id"]] = record
    return found


def versions(record):
    """The versions of an episode's sampled tokens; those of other tokens must not say one."""
    assert all((version is not None) == on for version, on in zip(record["version"], record["mask"], strict=True))
    return {version for version in record["version"] if version is not None}


# What is sampled with which weights


def test_rows_and_first_samples_are_those_of_a_synchronous_run(run, train, read_lines, tmp_path):
    """The same tasks in the same steps; until something was learned, the same tokens."""
    path, folder, summary = run
    other = train(path, tmp_path / "sync", "training.steps=4", "training.eval.every=2")
    ours, theirs = by_step(read_lines, folder), by_step(read_lines, tmp_path / "sync")
    tasks = [
        {step: {name: e["task"] for name, e in of.items()} for step, of in each.items()} for each in (ours, theirs)
    ]
    assert tasks[0] == tasks[1]
    assert {name: e["ids"] for name, e in ours[1].items()} == {name: e["ids"] for name, e in theirs[1].items()}
    assert summary["episodes"] == other["episodes"]


def test_every_token_says_with_which_weights_and_none_is_older_than_a_step(run, read_lines):
    """The first batch is sampled with the weights that learn from it, each later one with those a step before."""
    _, folder, _ = run
    found = {step: set().union(*map(versions, of.values())) for step, of in sorted(by_step(read_lines, folder).items())}
    assert found == {1: {0}, 2: {0}, 3: {1}, 4: {2}}
    lines = read_lines(folder / "metrics.jsonl")
    assert [(line["staleness_mean"], line["staleness_max"]) for line in lines] == [(0, 0), (1, 1), (1, 1), (1, 1)]


def test_a_synchronous_run_says_that_its_samples_are_fresh(write_manifest, train, read_lines, tmp_path):
    """The same figures, all 0."""
    train(write_manifest(), tmp_path / "run", "training.steps=2", "training.eval.tasks=0")
    assert [line["staleness_max"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")] == [0, 0]
    found = by_step(read_lines, tmp_path / "run")
    assert {step: set().union(*map(versions, of.values())) for step, of in found.items()} == {1: {0}, 2: {1}}


def test_evaluations_have_the_weights_of_now(run, read_lines):
    """Also the one in between, while a batch of older weights is there already."""
    _, folder, summary = run
    for phase, step in (("eval_before", 0), ("eval_2", 2), ("eval_after", 4)):
        (found,) = by_step(read_lines, folder, phase).items()
        assert (found[0], set().union(*map(versions, found[1].values()))) == (step, {step})
    assert [summary[name]["step"] for name in ("eval_before", "eval_after")] == [0, 4]


def model_of(path, folder, version):
    """The model after so many steps."""
    manifest = load_manifest(path)
    model = AutoModelForCausalLM.from_pretrained(manifest.model.name).eval()
    if version:
        model.load_state_dict(load_file(folder / "checkpoints" / f"step-{version:08d}" / "weights.safetensors"))
    return model


def logprobs(model, record):
    """What a model says of an episode's sampled tokens."""
    ids, mask = torch.tensor(record["ids"]), torch.tensor(record["mask"])
    with torch.no_grad():
        rows = model(ids[None]).logits[0].log_softmax(-1)
    return rows[:-1].gather(1, ids[1:, None])[:, 0][mask[1:]]


def test_the_weights_of_a_batch_are_those_that_its_tokens_name(run, read_lines):
    """All turns of an episode: weights never change under it. Those of a step later say something else."""
    path, folder, _ = run
    for step, records in by_step(read_lines, folder).items():
        for record in records.values():
            (version,) = versions(record)
            sampled = torch.tensor([value for value in record["logprobs"] if value is not None])
            torch.testing.assert_close(logprobs(model_of(path, folder, version), record), sampled, atol=1e-4, rtol=0)
            if step > 1:
                assert (logprobs(model_of(path, folder, step - 1), record) - sampled).abs().max() > 1e-3


# The correction


def test_the_correction_is_switched_on(run):
    """The folder's manifest has it spelled out."""
    _, folder, _ = run
    algorithm = load_manifest(folder / "config.yaml").algorithm.settings()
    assert (algorithm.old_logprobs, algorithm.sampler_cap) == ("trainer", 2.0)


@pytest.mark.parametrize("step", [1, 3])
def test_the_loss_is_that_of_samples_weighed_by_how_likely_they_are_now(step, run, read_lines):
    """Each token's advantage times min(probability now / probability then, 2); computed again from the folder alone."""
    path, folder, _ = run
    algorithm = load_manifest(folder / "config.yaml").algorithm.settings()
    line = read_lines(folder / "metrics.jsonl")[step - 1]
    groups: dict[str, list] = {}
    for name, record in sorted(by_step(read_lines, folder)[step].items()):
        groups.setdefault(name.rpartition("-")[0], []).append(from_record(record))
    batch = build_batch([Group(key, m[0].task, tuple(m)) for key, m in groups.items()], algorithm)
    now = model_of(path, folder, step - 1)
    total, weights = 0.0, []
    for row in (row for group in batch.groups for row in group if row.trained):
        ids, mask = torch.tensor(row.ids), torch.tensor(row.mask)
        with torch.no_grad():
            said = now(ids[None]).logits[0].log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0][mask[1:]]
        then = torch.tensor([value for value, on in zip(row.logprobs, row.mask, strict=True) if on])
        advantages = torch.tensor(row.advantages)[mask]
        weight = (said - then).exp().clamp(max=2.0)
        total -= float((weight * advantages).sum())
        weights.append(weight)
    assert line["loss"] == pytest.approx(total / batch.counts.counted_tokens, abs=1e-5)
    assert line["correction_mean"] == pytest.approx(float(torch.cat(weights).mean()), abs=1e-5)
    assert (abs(line["correction_mean"] - 1) > 1e-4) is (step > 1)


def test_old_samples_are_no_fault_of_the_ledger(run):
    """Sampler and trainer are compared where they have the same weights."""
    _, _, summary = run
    ledger = summary["ledger"]
    assert (ledger["ok"], ledger["forks"], ledger["episodes"]) == (True, 0, summary["episodes"])
    assert ledger["extended"] == ledger["turns"] - ledger["episodes"]
    assert ledger["compared"] > 0


@pytest.mark.parametrize("what", ["last:1", "lora"])
def test_less_than_the_whole_model_can_learn(what, write_manifest, train, read_lines, tmp_path):
    """With a reference beside: the sampler's adapter is merged, and the trainer's is not."""
    options = (f"model.train={what}", "algorithm.kl_coef=0.1", "training.eval.tasks=0")
    train(write_manifest(), tmp_path / "run", *ASYNC, *options)
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["staleness_max"] for line in lines] == [0, 1, 1, 1]
    assert lines[0]["sampler_difference_max"] < 1e-3 < lines[-1]["sampler_difference_max"]
    assert lines[-1]["kl"] > 0


# Both at the same time


class Waits:
    """From the second batch on, an answer is waited for until the first step is over."""

    stepped = threading.Event()
    dataset_size = 8

    def reset(self, seed=None, row_index=None, evaluation=None):
        return f"row {row_index}", {}

    def step(self, action):
        Waits.answers += 1
        if Waits.answers > 8:
            assert Waits.stepped.wait(20)
        return "", float(len(action)), True, False, {}


class Opens(SilentObserver):
    """Lets the environments go on when a step is over."""

    def step_finished(self, metrics):
        Waits.stepped.set()


def start(path, folder, observer, *overrides, make_env=None):
    """Train as the `train` fixture does, with an observer and environments of the test's own."""
    manifest = load_manifest(path, [*ASYNC, "training.eval.tasks=0", *overrides])
    return train_manifest(
        manifest, RunFolder.create(folder, manifest_to_yaml(manifest)), observer, Given(make_env=make_env)
    )


def test_a_batch_is_learned_from_while_the_next_one_is_sampled(write_manifest, tmp_path):
    """The second batch's environments wait for the first step's end, which does not wait for them."""
    Waits.answers = 0
    path = write_manifest(algorithm="{group_size: 4}")
    summary = start(path, tmp_path / "run", Opens(), make_env=Waits)
    assert (summary["steps_done"], summary["failed"], summary["leaked"]) == (4, 0, 0)


def test_a_step_says_how_long_its_batch_was_waited_for(run, read_lines):
    """Beside how long it took to sample, which is no part of the step where it went on during the one before."""
    _, folder, _ = run
    for line in read_lines(folder / "metrics.jsonl"):
        seconds = line["seconds"]
        assert set(seconds) == {"rollout", "update", "step", "wait"}
        assert seconds["step"] >= seconds["wait"] + seconds["update"]


# What goes wrong in the batch ahead

BROKEN = '''
"""In the second batch one answer raises and one hangs."""

import itertools
import threading

answers = itertools.count(1)


class Env:
    dataset_size = 20

    def __init__(self):
        self.let_go = threading.Event()

    def reset(self, seed=None, row_index=None, evaluation=None):
        return f"row {row_index}", {}

    def step(self, action):
        number = next(answers)
        if number == 10:
            raise RuntimeError("out of coins")
        if number == 12:
            self.let_go.wait()
        return "", sum(c.isalpha() for c in action) / max(1, len(action)), True, False, {}

    def close(self):
        self.let_go.set()
'''


def test_environments_that_fail_in_the_batch_ahead_cost_their_own_episodes(write_manifest, train, read_lines, tmp_path):
    """One raises, one hangs: the others teach, and nothing leaks."""
    section = "{env_type: rollout, entrypoint: 'env.py:Env', max_turns: 1, request_timeout_s: 2}"
    path = write_manifest(BROKEN, environment=section)
    summary = train(path, tmp_path / "run", *ASYNC, "training.eval.tasks=0")
    failed = [line for line in read_lines(tmp_path / "run" / "trajectories.jsonl") if line["failed"]]
    assert [line["step"] for line in failed] == [2, 2]
    assert [line["failed"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")] == [0, 2, 0, 0]
    assert (summary["steps_done"], summary["replaced_environments"], summary["leaked"]) == (4, 2, 0)


def test_what_ends_the_run_in_the_batch_ahead_is_raised_where_it_would_be_learned_from(write_manifest, tmp_path):
    """The step that was going on is finished and kept."""
    env = """
import itertools
numbers = itertools.count()

class Env:
    def reset(self, seed=None):
        return f"task {max(8, next(numbers))}", {}  # different ones from the second batch on
    def step(self, action):
        return "", float(len(action)), True, False, {}
"""
    with pytest.raises(GroupMismatchError, match=r"reset\(seed\) must give the same task for the same seed"):
        start(write_manifest(env), tmp_path / "run", SilentObserver())
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000001"]


class Raises(SilentObserver):
    """Has a bug, which is met on the sampler's thread while the first step goes on."""

    episodes = 0

    def episode_finished(self):
        self.episodes += 1
        if self.episodes == 10:
            raise LookupError("a bug")


def test_a_bug_on_the_thread_that_samples_is_raised_in_the_main_one(write_manifest, tmp_path):
    """It is no failure of ours, and ends the run all the same; nothing goes on behind it."""
    with pytest.raises(LookupError, match="a bug"):
        start(write_manifest(), tmp_path / "run", Raises())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tiltyard-step")]


class RaisesToo(Raises):
    """Presses Ctrl-C right before it."""

    def episode_finished(self):
        if self.episodes == 9:
            os.kill(os.getpid(), signal.SIGINT)
        super().episode_finished()


def test_an_error_of_the_batch_ahead_is_warned_of_where_the_run_ends_for_another_reason(write_manifest, tmp_path):
    """It is not lost, and the run ends as it would have."""
    with pytest.warns(UserWarning, match="the sampling for step 2 failed: LookupError: a bug"):
        summary = start(write_manifest(), tmp_path / "run", RaisesToo())
    assert (summary["interrupted"], summary["leaked"]) == (True, 0)


# Where it cannot be


def test_several_processes_are_refused(write_manifest, tmp_path):
    """With what to do instead."""
    manifest = load_manifest(write_manifest(), ASYNC)
    facts = probe(manifest.environment, env_factory(manifest.environment))
    with (
        RunFolder.create(tmp_path / "run", "") as folder,
        pytest.raises(ManifestError, match=r"training\.asynchronous: only with one process, got 2"),
    ):
        run_parts(manifest, facts, folder, SilentObserver(), processes=OneProcess(0, 2))


def test_a_manifest_made_in_python_is_refused_without_the_correction(write_manifest, tmp_path):
    """It was never read from a file, where the correction is switched on."""
    values = load_manifest(write_manifest()).model_dump()
    values["training"]["asynchronous"] = True
    manifest = Manifest.model_validate(values)
    facts = probe(manifest.environment, env_factory(manifest.environment))
    with (
        RunFolder.create(tmp_path / "run", "") as folder,
        pytest.raises(ManifestError, match=r"algorithm\.old_logprobs: must be trainer with training\.asynchronous"),
    ):
        run_parts(manifest, facts, folder, SilentObserver())
