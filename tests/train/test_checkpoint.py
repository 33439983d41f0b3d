"""Checkpoints: whole or not there, and never of another model."""

import json
import random

import numpy as np
import pytest
import torch

from tiltyard.errors import CheckpointError
from tiltyard.train.checkpoint import load_checkpoint, load_weights, newest_checkpoint, save_checkpoint


class _Model:
    def __init__(self, value=0.0, shape=(2, 3), name="weight"):
        self.weights = {name: torch.full(shape, value)}

    def state_dict(self):
        return self.weights

    def load_state_dict(self, state):
        self.weights = dict(state)


class _Learner:
    def __init__(self, step=0):
        self.state = {"step": step, "optimiser": {"moments": [torch.full((2,), float(step))]}}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def _save(folder, step, **options):
    return save_checkpoint(
        folder, step, model=_Model(float(step)), learner=_Learner(step), position={"epoch": step}, **options
    )


def test_what_was_saved_comes_back(tmp_path):
    """Weights, optimiser, step and the position in the tasks."""
    path = _save(tmp_path / "checkpoints", 3)
    model, learner = _Model(), _Learner()
    checkpoint = load_checkpoint(path, model=model, learner=learner)
    assert (checkpoint.step, checkpoint.position) == (3, {"epoch": 3})
    assert model.weights["weight"].tolist() == [[3.0] * 3] * 2
    assert learner.state["optimiser"]["moments"][0].tolist() == [3.0, 3.0]


def test_every_random_state_goes_on_where_it_was(tmp_path):
    """Python, numpy and torch draw what they would have drawn without the break."""

    def draws():
        return random.random(), float(np.random.random()), torch.rand(1).item()

    path = _save(tmp_path, 1)
    expected = draws()
    random.seed(9)
    np.random.seed(9)
    torch.manual_seed(9)
    load_checkpoint(path, model=_Model(), learner=_Learner())
    assert draws() == expected


def test_the_newest_checkpoint_is_the_one_with_the_most_steps(tmp_path):
    """By number, not by name or by time; without any there is none."""
    assert newest_checkpoint(tmp_path / "missing") is None
    for step in (10, 9):
        _save(tmp_path, step, keep=5)
    assert newest_checkpoint(tmp_path).name == "step-00000010"


def test_only_the_last_checkpoints_stay(tmp_path):
    """Older ones are removed once the new one is whole."""
    for step in (1, 2, 3):
        _save(tmp_path, step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


def test_a_save_that_was_cut_off_is_not_a_checkpoint_and_is_cleared_away(tmp_path):
    """A folder without its last file, or under its first name, is no checkpoint."""
    whole = _save(tmp_path, 1)
    (tmp_path / ".partial-00000002").mkdir()
    (tmp_path / "step-00000003").mkdir()
    assert newest_checkpoint(tmp_path) == whole
    _save(tmp_path, 4)
    assert not (tmp_path / ".partial-00000002").exists()


def test_a_step_can_be_saved_again(tmp_path):
    """The later save replaces the earlier one."""
    _save(tmp_path, 1)
    path = save_checkpoint(tmp_path, 1, model=_Model(7.0), learner=_Learner(1), position={})
    model = _Model()
    load_checkpoint(path, model=model, learner=_Learner())
    assert model.weights["weight"][0, 0].item() == 7.0


@pytest.mark.parametrize("name", ["weights.safetensors", "optimiser.pt", "rng.pt"])
def test_a_damaged_file_is_named_and_nothing_is_changed(tmp_path, name):
    """One flipped byte is enough."""
    path = _save(tmp_path, 1)
    content = bytearray((path / name).read_bytes())
    content[-1] ^= 1
    (path / name).write_bytes(content)
    model, learner = _Model(), _Learner()
    with pytest.raises(CheckpointError, match=f"{name} is not the file that was saved"):
        load_checkpoint(path, model=model, learner=learner)
    assert model.weights["weight"][0, 0].item() == 0.0
    assert learner.state["step"] == 0


def test_a_missing_file_is_named(tmp_path):
    """And the message says what to do."""
    path = _save(tmp_path, 1)
    (path / "optimiser.pt").unlink()
    with pytest.raises(CheckpointError, match=r"optimiser.pt is missing; delete the folder"):
        load_checkpoint(path, model=_Model(), learner=_Learner())


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (_Model(shape=(2, 4)), r"'weight' is \(2, 3\) in the checkpoint and \(2, 4\) here"),
        (_Model(name="adapter"), "'adapter' is missing in the checkpoint"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path, model, says):
    """The first weight that differs is named with both shapes."""
    with pytest.raises(CheckpointError, match=says):
        load_checkpoint(_save(tmp_path, 1), model=model, learner=_Learner())


@pytest.mark.parametrize("key", ["files", "step", "position"])
def test_a_checkpoint_that_says_too_little_of_itself_is_damaged(tmp_path, key):
    """Its folder is named, and what to do with it."""
    saved = _save(tmp_path, 1)
    about = json.loads((saved / "checkpoint.json").read_text(encoding="utf-8"))
    del about[key]
    (saved / "checkpoint.json").write_text(json.dumps(about), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"is damaged: it needs files.*delete .*step-00000001 to resume"):
        load_checkpoint(saved, model=_Model(), learner=_Learner())


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"format": "other-2"})])
def test_a_folder_of_another_kind_is_refused(tmp_path, text):
    """A later format, another tool's folder, half a file."""
    (tmp_path / "checkpoint.json").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"checkpoint\.json"):
        load_checkpoint(tmp_path, model=_Model(), learner=_Learner())


@pytest.mark.parametrize("inside", ["", "checkpoints", "checkpoints/step-00000002"])
def test_weights_are_found_from_a_run_folder_or_a_checkpoint(tmp_path, inside):
    """Evaluation needs no optimiser and no random states."""
    _save(tmp_path / "checkpoints", 2)
    model = _Model()
    assert load_weights(tmp_path / inside, model).step == 2
    assert model.weights["weight"][0, 0].item() == 2.0


def test_a_folder_without_checkpoints_is_refused(tmp_path):
    """The message says what may be given."""
    with pytest.raises(CheckpointError, match="is no checkpoint, and holds none"):
        load_weights(tmp_path, _Model())


def test_weights_that_share_memory_are_saved_each(tmp_path):
    """Tied weights are one tensor under two names."""
    model = _Model(1.0)
    model.weights["tied"] = model.weights["weight"]
    save_checkpoint(tmp_path, 1, model=model, learner=_Learner(), position={})
    assert load_weights(tmp_path, model).step == 1
    assert torch.equal(model.weights["tied"], model.weights["weight"])
