"""DPO: CPU-seconds of an optimiser step, the reference's share included, against TRL's DPOTrainer."""

# pyright: reportMissingImports=false
# TRL comes with the extra `bench` only; types are checked without it too.

import time

from benchmarks.algorithms.rows import Side, preference_rows
from benchmarks.algorithms.sft import LEARNING_RATE, clock, keep_order, trl_options
from tiltyard.models.loading import LoadedModel
from tiltyard.models.trainable import make_trainable
from tiltyard.train.dataset_env import DatasetEnv
from tiltyard.train.examples import Pair
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.train.preference_learner import PreferenceLearner
from tiltyard.train.supervised_algorithms import DPO

BETA = 0.1


def dpo_ours(loaded: LoadedModel, steps: int, batch: int) -> Side:
    """Our own steps; the reference's log-probabilities are computed once before them, and counted."""
    env = DatasetEnv(preference_rows(steps * batch), loaded.tokenizer, objective="preference", train_test_split=1)
    pairs = [each for each in env.train if isinstance(each, Pair)]
    learner = PreferenceLearner(make_trainable(loaded.model, "full"), DPO(beta=BETA), OptimiserSettings(LEARNING_RATE))
    side, began = Side(), time.process_time()
    references = learner.reference_logprobs(pairs)
    side.before = time.process_time() - began
    for step in range(steps):
        began, chosen = time.process_time(), slice(step * batch, (step + 1) * batch)
        done = learner.update(pairs[chosen], references[chosen])
        side.seconds.append(time.process_time() - began)
        side.losses.append(sum(score.loss for score in done.scores) / batch)
        side.tokens.append(done.tokens)
        print(
            f"dpo ours {step + 1}: {side.seconds[-1]:.2f} CPU-s, loss {side.losses[-1]:.5f}, {done.tokens} tokens, "
            f"{done.computed_tokens} computed",
            flush=True,
        )
    print(f"dpo ours: {side.before:.2f} CPU-s for the reference", flush=True)
    return side


def dpo_trl(loaded: LoadedModel, steps: int, batch: int, micro_batch: int) -> Side:
    """TRL's trainer on the same pairs in the same order, the reference computed once before the steps and counted."""
    from datasets import Dataset  # noqa: PLC0415  # the benchmark's own dependency
    from trl.trainer.dpo_config import DPOConfig  # noqa: PLC0415
    from trl.trainer.dpo_trainer import DPOTrainer  # noqa: PLC0415

    side, began = Side(), time.process_time()
    trainer = DPOTrainer(
        model=loaded.model,
        processing_class=loaded.tokenizer,
        args=DPOConfig(
            **trl_options(steps, batch, micro_batch),
            max_length=None,
            beta=BETA,
            precompute_ref_log_probs=True,
            precompute_ref_batch_size=micro_batch,
        ),
        train_dataset=Dataset.from_list(preference_rows(steps * batch)),
        callbacks=[clock(side, "dpo")],
    )
    side.before = time.process_time() - began
    keep_order(trainer)
    trainer.train()
    print(f"dpo trl: {side.before:.2f} CPU-s for the reference and the tokens", flush=True)
    return side
