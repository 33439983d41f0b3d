"""What the tests of Ctrl-C run in a process of its own: four episodes, of which all but the first hang in a step."""

import signal
import sys
import time
from pathlib import Path

from rollout_envs import Recorder, over

from tiltyard.rollout.collector import RolloutCollector
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.tasks import TaskAssigner
from tiltyard.rollout.trace import TraceWriter
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens
from tiltyard.tokens.renderer import make_renderer


class Probe(Recorder):
    """Writes down what is asked of it; the first one plays, the others hang."""

    made = 0

    def __init__(self, log, closing_s):
        self.number, Probe.made = Probe.made, Probe.made + 1
        self.log, self.closing_s = log, closing_s
        super().__init__(over() if self.number == 0 else self.hang)

    def note(self, what):
        with self.log.open("a") as file:
            file.write(f"{what} {self.number}\n")

    def hang(self):
        self.note("step")
        time.sleep(60)
        return over()

    def close(self):
        self.note("close")
        time.sleep(self.closing_s)
        self.note("closed")


def main(folder, closing_s):
    log = folder / "log"
    traces = TraceWriter(folder / "t.jsonl")
    tokenizer = byte_tokenizer()
    collector = RolloutCollector(
        lambda: Probe(log, closing_s),
        4,
        1,
        policy=ScriptedTokens(tokenizer, ["x"]),
        renderer=make_renderer(tokenizer),
        limits=Limits(),
        assigner=TaskAssigner(None, 4),
        on_finished=traces.write,
    )
    try:
        collector.collect()
    except KeyboardInterrupt:
        with log.open("a") as file:
            file.write("interrupted\n")
        collector.close(timeout_s=50)
        return 130
    return 0


if __name__ == "__main__":
    # A shell that starts the tests in the background has its children ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))
