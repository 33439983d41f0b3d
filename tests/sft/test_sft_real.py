"""SFT with a real model: the loss that the model itself would give, and the example that gets better."""

from pathlib import Path

import pytest
import torch

from tiltyard.models.loading import load_model
from tiltyard.models.trainable import make_trainable
from tiltyard.train.dataset_env import DatasetEnv
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.train.sft_learner import SFTLearner
from tiltyard.train.supervised_algorithms import SFT

EXAMPLE = Path(__file__).parents[2] / "examples" / "sft"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_loss_is_that_of_the_models_own_labels():
    """Calls, results and answers of the example's rows, in one pack that shares the tools' section."""
    loaded = load_model("smollm2-135m-instruct", device="cpu")
    env = DatasetEnv(str(EXAMPLE / "rows.jsonl"), loaded.tokenizer, objective="sft", train_test_split=0.5)
    examples = env.train[:3]
    learner = SFTLearner(make_trainable(loaded.model, "full"), SFT(), OptimiserSettings(1e-6), pack_tokens=2000)
    for example, score in zip(examples, learner.score(examples), strict=True):
        ids, mask = torch.tensor([example.ids.tolist()]), torch.tensor([[*example.mask]], dtype=torch.bool)
        with torch.no_grad():
            own = loaded.model(input_ids=ids, labels=ids.masked_fill(~mask, -100)).loss
        assert score.nll / score.tokens == pytest.approx(own.item(), abs=1e-4)


def test_the_example_gets_better_on_held_out_rows_in_a_few_steps(train, tmp_path):
    """A shop's assistant that calls its tools."""
    few = ("training.epochs=null", "training.steps=6", "training.schedule=constant", "training.eval.every=0")
    summary = train(EXAMPLE / "sft.yaml", tmp_path / "run", *few, "training.eval.tasks=16")
    before, after = summary["eval_before"], summary["eval_after"]
    assert after["high"] < before["low"]
    assert after["token_accuracy"]["low"] > before["token_accuracy"]["high"]
