"""`training.asynchronous`, and the correction that goes with it."""

import pytest

from tiltyard.errors import ManifestError
from tiltyard.manifest import load_manifest
from tiltyard.train.algorithms import ALGORITHMS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_correction_is_the_default_of_an_asynchronous_run(name, write_manifest):
    """For every algorithm, and for no other run."""
    path = write_manifest(algorithm=f"{{name: {name}}}")
    algorithm = load_manifest(path, ["training.asynchronous=true"]).algorithm.settings()
    assert (algorithm.old_logprobs, algorithm.sampler_cap) == ("trainer", 2.0)
    algorithm = load_manifest(path).algorithm.settings()
    assert (algorithm.old_logprobs, algorithm.sampler_cap) == ("sampler", None)


def test_a_cap_that_is_given_is_kept(write_manifest):
    """A key without a value means its default, which is 2 then."""
    path = write_manifest(algorithm="{sampler_cap: 5}")
    assert load_manifest(path, ["training.asynchronous=true"]).algorithm.settings().sampler_cap == 5.0
    unset = ["training.asynchronous=true", "algorithm.sampler_cap=null"]
    assert load_manifest(path, unset).algorithm.settings().sampler_cap == 2.0


def test_the_ratio_cannot_be_that_to_an_older_sampler(write_manifest):
    """One problem, which names the key and the reason."""
    path = write_manifest(algorithm="{old_logprobs: sampler, sampler_cap: 3}")
    with pytest.raises(ManifestError) as raised:
        load_manifest(path, ["training.asynchronous=true"])
    assert str(raised.value) == (
        f"{path}: algorithm.old_logprobs: must be trainer with training.asynchronous: true, since samples of older "
        "weights are weighed with the trainer's probabilities over the sampler's, got sampler"
    )


def test_rows_are_not_sampled(write_manifest, tmp_path):
    """A run over rows has nothing to do ahead."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    path = write_manifest(
        environment="{env_type: dataset, dataset: rows.jsonl, objective: sft}",
        algorithm="{name: SFT}",
        rollout="{}",
        training="{steps: 1, asynchronous: true}",
    )
    with pytest.raises(ManifestError, match=r"training\.asynchronous: only with env_type: rollout; rows are not"):
        load_manifest(path)


def test_a_run_does_not_become_asynchronous_when_it_is_resumed(write_manifest, train, tmp_path):
    """Its correction would change with it."""
    path = write_manifest()
    train(path, tmp_path / "run", "training.steps=1", "training.eval.tasks=0")
    with pytest.raises(ManifestError, match=r"training\.asynchronous: the run has False, now it is True"):
        train(path, tmp_path / "run", "training.asynchronous=true", "training.eval.tasks=0", resume=True)
