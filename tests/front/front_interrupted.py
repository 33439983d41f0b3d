"""What the tests of Ctrl-C run in a process of its own: of four trajectories all but the first hang in a tool."""

import signal
import sys
import time
from pathlib import Path

from front_scripts import ASK, call, local, served

from tiltyard.envs.base import Env
from tiltyard.types import StepResult


class Probe(Env):
    """Writes down what is asked of it."""

    def __init__(self, log, closing_s):
        self.log, self.closing_s, self.number = log, closing_s, None

    def note(self, what):
        with self.log.open("a") as file:
            file.write(f"{what} {self.number}\n")

    def reset(self, trajectory=None):
        self.number = trajectory["number"]
        return StepResult("begin")

    def step(self, tool_name, arguments):
        if self.number:
            self.note("step")
            time.sleep(60)
        return StepResult("over", 1.0, True)

    def tools(self):
        return [{"type": "function", "function": {"name": "act", "description": "Act."}}]

    def close(self):
        self.note("close")
        time.sleep(self.closing_s)
        self.note("closed")


def main(kind, folder, closing_s):
    log = folder / "log"
    make = {"local": local, "served": served}[kind]
    options = {"env_factory": lambda: Probe(log, closing_s), "trace_dir": folder / "traces", "preflight": False}
    rollout = make([call("act")], **options)
    try:
        rollout([{"messages": [ASK], "number": number} for number in range(4)])
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    # A shell that starts the tests in the background has its children ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))
