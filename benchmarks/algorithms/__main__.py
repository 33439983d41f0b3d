"""Supervised training against TRL's trainers: the same model, rows, order, dtype and threads, in one run.

`python -m benchmarks.algorithms [--steps 4] [--threads 1] [--only sft]` prints CPU-seconds and loss of every step of
both sides, and as its last line one JSON object: tokens of the rows per CPU-second, and the ratios. Full fine-tuning in
fp32 of SmolLM2-135M-Instruct, 8 rows (pairs) an optimiser step, AdamW at 2e-5 without warm-up or decay, clipping at
norm 1. Prompts have about 100 tokens, answers 30 to 120, and only answers are learned; both sides get the same tokens,
so that their losses agree. The first step warms up and is not measured.TRL runs in the way that was fastest for it
here: without gradient checkpointing, in micro-batches of one row or pair (`--trl-micro-batch`; larger ones are padded
to the longest, and its padding-free mode and its packing need flash attention, which a CPU has not), and for DPO with
the reference computed once beforehand, as ours is; that time counts on both sides, spread over the steps. The figures
of `benchmarks.algorithms_memory` and `benchmarks.algorithms_async` stand beside them.
"""

import argparse
import copy
import json
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.algorithms.dpo import dpo_ours, dpo_trl
from benchmarks.algorithms.rows import Side
from benchmarks.algorithms.sft import sft_ours, sft_trl
from benchmarks.algorithms_async import async_figures
from benchmarks.algorithms_memory import memory_figures
from tiltyard.models.loading import LoadedModel, load_model

BATCH = 8


def compared(name: str, ours: Callable[[], Side], trl: Callable[[], Side]) -> dict[str, Any]:
    """The figures of one algorithm, ours first."""
    sides = {"ours": ours(), "trl": trl()}
    apart = [abs(one - other) for one, other in zip(sides["ours"].losses, sides["trl"].losses, strict=True)]
    tokens = statistics.fmean(sides["ours"].tokens[1:])
    return {
        **{f"{name}_{side}_tokens_per_cpu_s": round(tokens / took.per_step, 1) for side, took in sides.items()},
        f"{name}_losses_apart": [float(f"{value:.2g}") for value in apart[:2]],
        f"trl_{name}_over_ours": round(sides["trl"].per_step / sides["ours"].per_step, 2),
    }


def supervised(name: str, steps: int, micro_batch: int) -> dict[str, Any]:
    """Compare one of the two algorithms, from the same weights on both sides."""
    loaded = load_model("smollm2-135m-instruct", device="cpu")
    other = LoadedModel(copy.deepcopy(loaded.model), loaded.tokenizer, loaded.name)
    ours, trl = {"sft": (sft_ours, sft_trl), "dpo": (dpo_ours, dpo_trl)}[name]
    return compared(name, lambda: ours(loaded, steps, BATCH), lambda: trl(other, steps, BATCH, micro_batch))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trl-micro-batch", type=int, default=1)
    figures: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "sft": lambda options: supervised("sft", options.steps, options.trl_micro_batch),
        "dpo": lambda options: supervised("dpo", options.steps, options.trl_micro_batch),
        "memory": lambda options: memory_figures(),
        "async": lambda options: async_figures(threads=options.threads),
    }
    parser.add_argument("--only", choices=[*figures])
    options = parser.parse_args(arguments)
    if options.steps < 2:
        parser.error(f"--steps must be >= 2, since the first one is not measured; got {options.steps}")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    result: dict[str, Any] = {"benchmark": "algorithms", "steps": options.steps}
    for name, measure in figures.items():
        if options.only in (None, name):
            result |= measure(options)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
