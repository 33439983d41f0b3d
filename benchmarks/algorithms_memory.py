"""What one GRPO step keeps in memory for its backward pass: it grows with the longest episode, not with the batch.

Counted in bytes that autograd holds, on a tiny random model, so that a busy machine changes nothing.
Run `python -m benchmarks.algorithms_memory`; the last line is one JSON object.
"""

import json
import random

from tiltyard.models.trainable import make_trainable
from tiltyard.rollout.groups import Group
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.testing.memory import SavedBytes
from tiltyard.testing.model import tiny_model
from tiltyard.tokens.transcript import Transcript
from tiltyard.train.algorithms import GRPO
from tiltyard.train.batch import build_batch
from tiltyard.train.learner import Learner
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.types import Task

GROUP_SIZE, PROMPT, ANSWER, PACK_TOKENS = 4, 32, 224, 256


def groups(count: int, answer: int) -> list[Group]:
    """So many groups of random answers of this length to a random prompt each."""
    draw = random.Random(0)
    found = []
    for number in range(count):
        prompt = [draw.randrange(300) for _ in range(PROMPT)]
        members = []
        for index in range(GROUP_SIZE):
            transcript = Transcript()
            transcript.observe(prompt)
            transcript.sample([draw.randrange(300) for _ in range(answer)], [-5.0] * answer)
            members.append(
                Trajectory(
                    f"{number}-{index}",
                    Task(seed=number),
                    Ending.DONE,
                    rewards=(float(index % 2),),
                    transcript=transcript,
                )
            )
        found.append(Group(str(number), Task(seed=number), tuple(members)))
    return found


def peak_bytes(count: int, answer: int) -> int:
    """The most that one update of so many groups holds at once."""
    # The answers are random, not the model's: with the correction nobody warns that the two disagree.
    algorithm = GRPO(group_size=GROUP_SIZE, old_logprobs="trainer", sampler_cap=2.0)
    trainable = make_trainable(tiny_model(context_length=2048), "full")
    learner = Learner(trainable, algorithm, OptimiserSettings(learning_rate=1e-9), pack_tokens=PACK_TOKENS)
    saved = SavedBytes(trainable.model.parameters())
    with saved.watch():
        learner.update(build_batch(groups(count, answer), algorithm))
    return saved.peak


def memory_figures() -> dict[str, float]:
    """The peak with four times as many groups, and with answers twice as long, over that of a small batch."""
    small = peak_bytes(2, ANSWER)
    return {
        "memory_4x_batch_over_1x": peak_bytes(8, ANSWER) / small,
        "memory_2x_longest_over_1x": peak_bytes(2, 2 * ANSWER + PROMPT) / small,
    }


if __name__ == "__main__":
    print(json.dumps(memory_figures()))
