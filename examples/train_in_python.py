"""Train from Python: an environment, a model and a few settings, and nothing on disk but the run folder.

python examples/train_in_python.py --steps 20
"""

import argparse
import random

from tiltyard import train_llm_rollout

SETTINGS = {
    "environment": {"max_turns": 1, "max_reward": 1.0},
    "model": {"train": "last:2"},
    "algorithm": {"name": "GRPO", "group_size": 8},
    "rollout": {"max_tokens_per_turn": 8, "length_reward": 0.0},
    "training": {"steps": 20, "batch_size": 4, "learning_rate": 1e-4, "schedule": "linear", "eval": {"tasks": 32}},
}


class LargerNumber:
    """Which of two numbers is larger: 1 for the right one, half of it for any number, nothing for anything else."""

    def reset(self, seed=None):
        self.numbers = random.Random(seed).sample(range(10, 100), 2)
        return f"Which is larger, {self.numbers[0]} or {self.numbers[1]}? Answer with the number alone.", {}

    def step(self, action):
        answer = action.strip().rstrip(".")
        right = answer == str(max(self.numbers))
        return "", 1.0 if right else 0.5 * answer.isdecimal(), True, False, {"success": right}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", help="the run folder to make (default: runs/train-TIME)")
    given = parser.parse_args()
    settings = {**SETTINGS, "training": {**SETTINGS["training"], "steps": given.steps}}
    summary = train_llm_rollout(settings, LargerNumber, given.model, out=given.out)
    for phase in ("eval_before", "eval_after"):
        print(f"{phase}: {summary[phase]['mean']:.2f} of {summary[phase]['n']} held-out tasks")
    print(f"best: {summary['best']}")


if __name__ == "__main__":
    main()
