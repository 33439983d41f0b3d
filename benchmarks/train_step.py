"""One GRPO step, sampling and training: ours against TRL's GRPOTrainer, full fine-tuning on both sides.

`python -m benchmarks.train_step [--steps 6] [--threads 1] [--only ours]` prints CPU-seconds and mean reward of
each step of both, and as its last line one JSON object. The model is to count on from a number: five numbers and
nothing else. Both sides have the same fp32 weights to begin with, the same prompts in the same order, 6 groups
of 8, at most 24 new tokens (a longer answer is worth 0), temperature 1, AdamW at 2e-5 without warm-up or decay,
clipping at norm 1, one optimiser step a batch, the token-mean loss, group-scaled advantages, and no reference
model. The first step warms up and is not measured. TRL runs in the way that was fastest for it here: without
gradient checkpointing, and in micro-batches of one group (`--trl-micro-batch`).
"""

# pyright: reportMissingImports=false
# TRL comes with the extra `bench` only; types are checked without it too.

import argparse
import copy
import json
import random
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tiltyard.models.loading import LoadedModel, load_model
from tiltyard.models.trainable import make_trainable
from tiltyard.policies.base import Sampling
from tiltyard.policies.hf import HFPolicy
from tiltyard.rollout.batched import BatchedRollout, Job
from tiltyard.rollout.groups import Group
from tiltyard.rollout.limits import Limits
from tiltyard.tokens.renderer import make_renderer
from tiltyard.train.algorithms import GRPO
from tiltyard.train.batch import build_batch
from tiltyard.train.learner import Learner
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.types import Task

GROUPS, GROUP_SIZE, MAX_TOKENS = 6, 8, 24
LEARNING_RATE = 2e-5
SYSTEM, QUESTION = "Answer with five numbers and nothing else.", "Count from {}."
EXAMPLE = "3 4 5 6 7"


@dataclass
class Curve:
    """What the steps of one side took and earned."""

    seconds: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)

    @property
    def per_step(self) -> float:
        return statistics.fmean(self.seconds[1:])


def start_of(seed: int) -> int:
    return random.Random(seed).randrange(10, 95)


def conversation(seed: int) -> list[dict[str, str]]:
    """One example and the question; about 60 tokens."""
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION.format(3)},
        {"role": "assistant", "content": EXAMPLE},
        {"role": "user", "content": QUESTION.format(start_of(seed))},
    ]


def score(text: str, seed: int) -> float:
    """The share of the answer's words that are the right number at the right place, of five at least."""
    words, right = text.split(), [str(start_of(seed) + i) for i in range(5)]
    return sum(word == number for word, number in zip(words, right, strict=False)) / max(len(words), len(right))


class Counting:
    """One question, one answer; the example comes with the task's messages."""

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        assert seed is not None
        self._seed = seed
        return QUESTION.format(start_of(seed)), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", score(action, self._seed), True, False, {}


def play_ours(loaded: LoadedModel, steps: int) -> Curve:
    """Our own step, through the parts that `tiltyard train` is made of."""
    renderer = make_renderer(loaded.tokenizer)
    model = make_trainable(loaded.model, "full")
    policy = HFPolicy(model.model, stop_ids=renderer.stop_ids, sampling=Sampling())
    algorithm = GRPO(group_size=GROUP_SIZE)
    learner = Learner(model, algorithm, OptimiserSettings(learning_rate=LEARNING_RATE))
    rollout = BatchedRollout(policy, renderer, Limits(max_turns=1, max_tokens_per_turn=MAX_TOKENS))
    envs = [Counting() for _ in range(GROUPS * GROUP_SIZE)]
    curve = Curve()
    for step in range(steps):
        began = time.process_time()
        tasks = [
            Task(seed=seed, messages=tuple(conversation(seed)[:-1]))
            for seed in range(step * GROUPS, (step + 1) * GROUPS)
        ]
        jobs = [Job(env, tasks[i // GROUP_SIZE], f"{step}-{i}") for i, env in enumerate(envs)]
        played = rollout.run(jobs)
        groups = [
            Group(f"{step}-{i}", task, tuple(played[i * GROUP_SIZE : (i + 1) * GROUP_SIZE]))
            for i, task in enumerate(tasks)
        ]
        sampled = time.process_time()
        metrics = learner.update(build_batch(groups, algorithm, truncated="zero"))
        policy.weights_changed()
        curve.seconds.append(time.process_time() - began)
        curve.rewards.append(statistics.fmean(0.0 if t.truncated else t.reward or 0.0 for t in played))
        curve.tokens.append(statistics.fmean(t.transcript.sampled for t in played if t.transcript is not None))
        report("ours", curve, f"rollout {sampled - began:.1f}, tokens computed {metrics.tokens_computed}")
    return curve


def play_trl(loaded: LoadedModel, steps: int, micro_batch: int) -> Curve:
    """TRL's trainer on the same prompts in the same order."""
    from datasets import Dataset  # noqa: PLC0415  # the benchmark's own dependency
    from transformers import TrainerCallback  # noqa: PLC0415
    from trl.trainer.grpo_config import GRPOConfig  # noqa: PLC0415
    from trl.trainer.grpo_trainer import GRPOTrainer  # noqa: PLC0415

    curve = Curve()

    def reward(completions: list[Any], row: list[int], completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        earned: list[float | None] = [
            score(answer[0]["content"], seed) if loaded.tokenizer.eos_token_id in ids else 0.0
            for answer, seed, ids in zip(completions, row, completion_ids, strict=True)
        ]
        curve.rewards.append(statistics.fmean(value or 0.0 for value in earned))
        curve.tokens.append(statistics.fmean(len(ids) for ids in completion_ids))
        return earned

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.began = time.process_time()

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            now = time.process_time()
            curve.seconds.append(now - self.began)
            self.began = now
            report("trl", curve, "")

    config = GRPOConfig(
        output_dir="build/train_step",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=GROUPS * GROUP_SIZE // micro_batch,
        num_generations=GROUP_SIZE,
        max_completion_length=MAX_TOKENS,
        max_steps=steps,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        temperature=1.0,
        top_k=0,
        beta=0.0,
        loss_type="dapo",
        scale_rewards="group",
        shuffle_dataset=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    rows = [{"prompt": conversation(seed), "row": seed} for seed in range(steps * GROUPS)]
    trainer = GRPOTrainer(
        model=loaded.model,
        processing_class=loaded.tokenizer,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        callbacks=[Clock()],
    )
    trainer.train()
    return curve


def report(name: str, curve: Curve, more: str) -> None:
    print(
        f"{name} step {len(curve.seconds)}: {curve.seconds[-1]:6.1f} CPU-s, reward {curve.rewards[-1]:.2f}, "
        f"{curve.tokens[-1]:.1f} tokens an answer {more}",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trl-micro-batch", type=int, default=GROUP_SIZE)
    parser.add_argument("--only", choices=["ours", "trl"])
    options = parser.parse_args(arguments)
    if options.steps < 2:
        parser.error(f"--steps must be >= 2, since the first one is not measured; got {options.steps}")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    loaded = load_model("smollm2-135m-instruct", device="cpu")
    other = LoadedModel(copy.deepcopy(loaded.model), loaded.tokenizer, loaded.name)
    sides: dict[str, Callable[[], Curve]] = {
        "ours": lambda: play_ours(loaded, options.steps),
        "trl": lambda: play_trl(other, options.steps, options.trl_micro_batch),
    }
    curves = {name: play() for name, play in sides.items() if options.only in (None, name)}
    for name, curve in curves.items():
        print(f"{name}: {curve.per_step:.2f} CPU-s a step, rewards", *(f"{reward:.2f}" for reward in curve.rewards))
    result: dict[str, Any] = {
        f"{name}_{key}": value
        for name, curve in curves.items()
        for key, value in (
            ("cpu_seconds_per_step", round(curve.per_step, 3)),
            ("rewards", [round(reward, 3) for reward in curve.rewards]),
            ("tokens_per_answer", round(statistics.fmean(curve.tokens), 2)),
        )
    }
    if len(curves) == len(sides):
        result["trl_over_ours"] = round(curves["trl"].per_step / curves["ours"].per_step, 2)
    print(json.dumps({"benchmark": "train_step", "steps": options.steps, **result}))


if __name__ == "__main__":
    main()
