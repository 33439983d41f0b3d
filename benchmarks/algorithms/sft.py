"""SFT: CPU-seconds of an optimiser step against TRL's SFTTrainer, full fine-tuning, the same rows in the same order."""

# pyright: reportMissingImports=false
# TRL comes with the extra `bench` only; types are checked without it too.

import time
from typing import Any

from benchmarks.algorithms.rows import Side, sft_rows
from tiltyard.models.loading import LoadedModel
from tiltyard.models.trainable import make_trainable
from tiltyard.train.dataset_env import DatasetEnv
from tiltyard.train.examples import Example
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.train.sft_learner import SFTLearner
from tiltyard.train.supervised_algorithms import SFT

LEARNING_RATE = 2e-5


def sft_ours(loaded: LoadedModel, steps: int, batch: int) -> Side:
    """Our own steps, through the parts that `tiltyard train` is made of."""
    examples = examples_of(loaded, steps * batch)
    learner = SFTLearner(make_trainable(loaded.model, "full"), SFT(), OptimiserSettings(LEARNING_RATE))
    side = Side()
    for step in range(steps):
        began = time.process_time()
        done = learner.update(examples[step * batch : (step + 1) * batch])
        side.seconds.append(time.process_time() - began)
        side.losses.append(done.loss)
        side.tokens.append(done.tokens)
        print(
            f"sft ours {step + 1}: {side.seconds[-1]:.2f} CPU-s, loss {done.loss:.5f}, {done.tokens} tokens, "
            f"{done.trained_tokens} learned, {done.computed_tokens} computed",
            flush=True,
        )
    return side


def examples_of(loaded: LoadedModel, count: int) -> list[Example]:
    """The rows as token ids and masks."""
    env = DatasetEnv(sft_rows(count), loaded.tokenizer, objective="sft", train_test_split=1)
    return [each for each in env.train if isinstance(each, Example)]


def sft_trl(loaded: LoadedModel, steps: int, batch: int, micro_batch: int) -> Side:
    """TRL's trainer on the same rows in the same order, given the same token ids and masks."""
    from datasets import Dataset  # noqa: PLC0415  # the benchmark's own dependency
    from trl.trainer.sft_config import SFTConfig  # noqa: PLC0415
    from trl.trainer.sft_trainer import SFTTrainer  # noqa: PLC0415

    side = Side()
    trainer = SFTTrainer(
        model=loaded.model,
        processing_class=loaded.tokenizer,
        args=SFTConfig(
            **trl_options(steps, batch, micro_batch),
            max_length=None,
            completion_only_loss=True,
            shuffle_dataset=False,
            packing=False,
        ),
        train_dataset=Dataset.from_list(
            [{"input_ids": e.ids.tolist(), "completion_mask": list(e.mask)} for e in examples_of(loaded, steps * batch)]
        ),
        callbacks=[clock(side, "sft")],
    )
    keep_order(trainer)
    trainer.train()
    return side


def trl_options(steps: int, batch: int, micro_batch: int) -> dict[str, Any]:
    """What both of TRL's trainers are given: fp32, no checkpointing, one optimiser step for `batch` rows."""
    return {
        "output_dir": "build/algorithms",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": batch // micro_batch,
        "max_steps": steps,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "logging_strategy": "steps",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def keep_order(trainer: Any) -> None:
    """Have a trainer take its rows in their order, and print nothing of its own."""
    from torch.utils.data import SequentialSampler  # noqa: PLC0415
    from transformers import PrinterCallback  # noqa: PLC0415

    trainer.remove_callback(PrinterCallback)
    trainer._get_train_sampler = lambda dataset=None: SequentialSampler(
        trainer.train_dataset if dataset is None else dataset
    )


def clock(side: Side, name: str) -> Any:
    """A callback that keeps the CPU-seconds and the loss of each step."""
    from transformers import TrainerCallback  # noqa: PLC0415

    class Clock(TrainerCallback):
        began = time.process_time()

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            side.seconds.append(time.process_time() - self.began)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **__: Any) -> None:
            if logs and "loss" in logs:
                side.losses.append(float(logs["loss"]))
                print(
                    f"{name} trl {len(side.losses)}: {side.seconds[-1]:.2f} CPU-s, loss {side.losses[-1]:.5f}",
                    flush=True,
                )
                self.began = time.process_time()

    return Clock()
