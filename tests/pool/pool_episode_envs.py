"""Environments of whole episodes that worker processes can import."""

import os
import signal
import threading
import time
from pathlib import Path

from tiltyard import EnvTool, ToolManager
from tiltyard.testing.guess import GuessToolEnv


class EventEnv:
    """A text environment; what happens at its second step is what the seed says."""

    EVENTS = ("nothing", "raise", "hang", "unpicklable", "exit", "die", "stop")

    def reset(self, seed=None):
        self.event, self.turn = self.EVENTS[(seed or 0) % 10], 0
        return f"seed {seed}", {}

    def step(self, action):
        self.turn += 1
        info = getattr(self, f"do_{self.event}")() if self.turn == 2 else None
        return f"turn {self.turn}", 1.0, self.turn == 2, False, info or {}

    def do_nothing(self):
        return None

    def do_raise(self):
        raise ValueError("the environment broke")

    def do_hang(self):
        time.sleep(60)

    def do_unpicklable(self):
        return {"lock": threading.Lock()}

    def do_exit(self):
        raise SystemExit(3)

    def do_die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def do_stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)


class DieOnce(EventEnv):
    """Dies, where the seed says so, unless a file says that it has done so before."""

    def __init__(self, log):
        self.log = Path(log)

    def do_die(self):
        if not self.log.exists():
            self.log.touch()
            super().do_die()


class GateEnv(EventEnv):
    """Episodes of an odd seed wait until a file is there; those of an even one are over at once."""

    def __init__(self, gate):
        self.gate = Path(gate)

    def step(self, action):
        if self.seed % 2:
            self.gate.with_name(f"waits-{self.seed}-{os.getpid()}").touch()
        while self.seed % 2 and not self.gate.exists():
            time.sleep(0.01)
        return "over", 1.0, True, False, {}

    def reset(self, seed=None):
        self.seed = seed
        return f"seed {seed}", {}


class JudgedEnv(GuessToolEnv):
    """Guessing a number, and an own opinion of how it went."""

    def evaluate(self, trajectories):
        return [len(one["messages"]) / 100 for one in trajectories]


def tools_for(trajectory):
    """A set of tools for each trajectory."""
    return ToolManager(EnvTool.from_env(GuessToolEnv()))


def letters_of(trajectory):
    """A reward function that a worker can import."""
    return float(len(trajectory["messages"]))
