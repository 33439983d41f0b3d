"""What a run learned, as a folder that other programs load."""

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiltyard.build import trainable_model
from tiltyard.cli import main
from tiltyard.errors import CheckpointError, ConfigurationError
from tiltyard.export import export_run, find_checkpoint
from tiltyard.manifest.resuming import manifest_of
from tiltyard.models.loading import load_model
from tiltyard.train.checkpoint import load_weights

# peft reads an attribute that newer versions of transformers have renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

IDS = torch.tensor([[5, 6, 7, 8]])
STEPS = "{steps: 2, batch_size: 2, learning_rate: 1e-3, save_every: 1, keep_checkpoints: 3, eval: {tasks: 0}}"


@pytest.fixture(scope="module", params=["full", "last:1", "lora"])
def mode(request):
    return request.param


@pytest.fixture(scope="module")
def trained(mode, manifest_in, train, tmp_path_factory, model_folder):
    """A run of two steps, with a checkpoint of each, of a whole model or of an adapter."""
    folder = tmp_path_factory.mktemp(mode.replace(":", "-"))
    path = manifest_in(folder, model=f"{{name: {model_folder}, train: '{mode}'}}", training=STEPS)
    train(path, folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def logits_of(trained):
    """What the run's own model says after a step."""

    def logits(which):
        manifest = manifest_of(trained)
        model = trainable_model(manifest, load_model(manifest.model.name).model)
        load_weights(find_checkpoint(trained, which), model)
        with torch.no_grad():
            return model.model(IDS).logits

    return logits


def logits_in(folder, mode, *, merged=False):
    auto = AutoPeftModelForCausalLM if mode == "lora" and not merged else AutoModelForCausalLM
    with torch.no_grad():
        return auto.from_pretrained(folder)(IDS).logits


def test_an_exported_folder_loads_and_says_what_the_run_says(trained, mode, logits_of, tmp_path):
    """A plain transformers folder for a whole model, a peft folder for an adapter, with the last weights."""
    exported = export_run(trained, tmp_path / "out")
    assert (exported.kind, exported.step) == ("adapter" if mode == "lora" else "model", 2)
    assert torch.allclose(logits_in(tmp_path / "out", mode), logits_of("last"), atol=1e-5)
    assert not torch.allclose(logits_of("last"), logits_of("1"), atol=1e-4)


def test_the_tokenizer_and_its_chat_template_are_in_the_folder(trained, tmp_path):
    """Whoever loads it can talk to it."""
    export_run(trained, tmp_path / "out")
    ours = AutoTokenizer.from_pretrained(manifest_of(trained).model.name)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    messages = [{"role": "user", "content": "Hi"}]
    assert theirs.apply_chat_template(messages, tokenize=False) == ours.apply_chat_template(messages, tokenize=False)


def test_a_step_can_be_asked_for(trained, mode, logits_of, tmp_path):
    """Any that the run still has."""
    assert export_run(trained, tmp_path / "out", checkpoint="1").step == 1
    assert torch.allclose(logits_in(tmp_path / "out", mode), logits_of("1"), atol=1e-5)


def test_what_was_written_is_said(trained, tmp_path, capsys):
    """By the command, in a line: where, what, of which step, how much."""
    assert main(["export", str(trained), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{tmp_path / 'out'}: ")
    assert "after step 2" in said
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_checkpoint_that_is_not_there_is_refused(trained, tmp_path):
    """The message says which are; nothing is written."""
    with pytest.raises(CheckpointError, match=r"last, best or a step that the run has \(1, 2\), got '7'"):
        export_run(trained, tmp_path / "out", checkpoint="7")
    with pytest.raises(CheckpointError, match="has no best checkpoint: it was never evaluated"):
        export_run(trained, tmp_path / "out", checkpoint="best")
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_is_there_is_written_over(trained, tmp_path):
    """A folder with something in it stays as it is."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    with pytest.raises(ConfigurationError, match="is there already"):
        export_run(trained, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_an_export_that_fails_leaves_nothing(trained, tmp_path):
    """A damaged checkpoint is noticed before a folder has a name."""
    weights = find_checkpoint(trained, "1") / "weights.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4])
    try:
        with pytest.raises(CheckpointError, match="is damaged"):
            export_run(trained, tmp_path / "out", checkpoint="1")
    finally:
        weights.write_bytes(whole)
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_can_be_merged(trained, mode, logits_of, tmp_path):
    """Then it is a whole model that needs no peft; without an adapter there is nothing to merge."""
    if mode != "lora":
        with pytest.raises(ConfigurationError, match=f"merge is for a trained adapter, and this run trained '{mode}'"):
            export_run(trained, tmp_path / "out", merge=True)
        return
    assert export_run(trained, tmp_path / "out", merge=True).kind == "model"
    assert torch.allclose(logits_in(tmp_path / "out", mode, merged=True), logits_of("last"), atol=1e-4)
