"""GRPO with the asynchronous mode against without it: environments that wait 200 ms a step, wall clock.

Both sides train the same random model from the same weights, with the same tasks, steps and episodes, in one run: one
side after the other, `ROUNDS` times, and of each the mean. The model is small, so that sampling is mostly waiting, and
a batch is gone through five times, so that training takes about as long: on two free cores. The wall clock is that of
the whole run, loading and closing included.
Run `python -m benchmarks.algorithms_async [--steps 10] [--threads 1]`; the last line is one JSON object.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tiltyard import train_llm_rollout
from tiltyard.models.loading import LoadedModel
from tiltyard.testing.model import tiny_model
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.train.observer import SilentObserver

ROUNDS, WAIT_S, TURNS = 2, 0.2, 6
END_LOGIT = 5.0
"""The average logit of the end token, where those of the others are near 0: an answer has about three tokens."""

SETTINGS: dict[str, Any] = {
    "environment": {"max_turns": TURNS},
    "algorithm": {"group_size": 4, "epochs": 5},
    "rollout": {"max_tokens_per_turn": 48, "length_reward": 0.0},
}


class Slow:
    """Six turns, each 200 ms; an answer earns the share of its characters that are letters."""

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Begin."""
        self.turn = 0
        return f"Write letters, as many as you can, and then stop. This is task {seed}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Wait, and score an answer."""
        time.sleep(WAIT_S)
        self.turn += 1
        share = sum(c.isalpha() for c in action) / max(1, len(action))
        return "Thank you. Write some more of them.", share, self.turn == TURNS, False, {}


def model() -> LoadedModel:
    """A random model whose training on a batch takes about as long as the environments of the next one wait."""
    tokenizer = byte_tokenizer()
    made = tiny_model(len(tokenizer), hidden=64, layers=2, heads=2, context_length=2048, tied=False)
    with torch.no_grad():
        hidden = made.model(torch.arange(len(tokenizer))[None]).last_hidden_state[0].mean(0)
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        made.lm_head.weight.mul_(0.05)
        made.lm_head.weight[end] = END_LOGIT * hidden / hidden.square().sum()
    return LoadedModel(made, tokenizer, "random")


def run(folder: Path, steps: int, threads: int, *, asynchronous: bool) -> dict[str, Any]:
    """Train once; returns the wall clock, and what was played and learned."""
    training = {
        "steps": steps,
        "batch_size": 4,
        "learning_rate": 1e-5,
        "save_every": 0,
        "threads": threads,
        "asynchronous": asynchronous,
        "eval": {"tasks": 0},
    }
    loaded, began = model(), time.perf_counter()
    summary = train_llm_rollout({**SETTINGS, "training": training}, Slow, loaded, out=folder, observer=SilentObserver())
    wall = time.perf_counter() - began
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    parts = {name: statistics.fmean(line["seconds"][name] for line in lines) for name in ("rollout", "update")}
    print(
        f"asynchronous {asynchronous}: {wall:.1f} s, {summary['episodes']} episodes of "
        f"{statistics.fmean(line['turns'] for line in lines):.1f} turns, a step samples {parts['rollout']:.2f} s and "
        f"trains {parts['update']:.2f} s, staleness {lines[-1]['staleness_max']}",
        flush=True,
    )
    played = (summary["steps_done"], summary["episodes"], summary["failed"], summary["leaked"])
    return {"wall": wall, "played": played}


def async_figures(steps: int = 10, threads: int = 1) -> dict[str, Any]:
    """The ratio of the two wall clocks.

    Raises:
        RuntimeError: The two sides did not play as many steps and episodes.
    """
    walls: dict[bool, list[float]] = {False: [], True: []}
    played = set()
    for number in range(ROUNDS):
        for asynchronous, found in walls.items():
            with tempfile.TemporaryDirectory() as folder:
                done = run(Path(folder) / f"run{number}", steps, threads, asynchronous=asynchronous)
            found.append(done["wall"])
            played.add(done["played"])
    if len(played) != 1:
        raise RuntimeError(f"the sides played different steps, episodes, failed and leaked ones: {played}")
    wall = {asynchronous: statistics.fmean(found) for asynchronous, found in walls.items()}
    return {
        "sync_wall_s": round(wall[False], 1),
        "async_wall_s": round(wall[True], 1),
        "async_over_sync_wall": round(wall[True] / wall[False], 2),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    print(json.dumps({"benchmark": "algorithms_async", **async_figures(options.steps, options.threads)}))


if __name__ == "__main__":
    main()
