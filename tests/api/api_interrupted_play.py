"""What the test of Ctrl-C runs in a process of its own: three episodes that hang in their first step."""

import asyncio
import sys
import time
from pathlib import Path

from tiltyard.rollout.concurrent import ConcurrentRollout
from tiltyard.rollout.jobs import Job
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.slots import EnvSlots
from tiltyard.testing.scripted import ScriptedAsyncPolicy
from tiltyard.types import Task


class Probe:
    """Writes down what is asked of it, and hangs in its step."""

    def __init__(self, log):
        self.log = log

    def note(self, what):
        with self.log.open("a") as file:
            file.write(f"{what}\n")

    def reset(self, seed=None):
        return "Begin.", {}

    def step(self, action):
        self.note("step")
        time.sleep(60)

    def close(self):
        self.note("close")


def main(log, where):
    slots = EnvSlots(lambda: Probe(log), 3)
    rollout = ConcurrentRollout(ScriptedAsyncPolicy(["x"]), Limits(), concurrency=3)

    def play():
        rollout.run([Job(slots, Task(), f"e{number}") for number in range(9)])

    async def cell():
        play()

    try:
        asyncio.run(cell()) if where == "in_a_loop" else play()
    except KeyboardInterrupt:
        with log.open("a") as file:
            file.write("interrupted\n")
    slots.close()
    return 130


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
