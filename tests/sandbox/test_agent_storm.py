"""64 episodes at once, and their server is killed in the middle: all are accounted for, and nothing is left behind."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tiltyard import AgentEnv, APIMultiTurnRollout, OpenAI, ToolCall
from tiltyard.envs.agent.held import sandbox_report
from tiltyard.leases import lost_leases
from tiltyard.testing.openai_server import OpenAIServer

EPISODES = 64
KEY = "e2b_00000000000000000000000000000000000storm"


class ServerProcess:
    """`tiltyard sandbox` in a process of its own, which can be killed and started again at its address."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.owners = set()

    def start(self):
        options = ["--port", str(self.port), "--key", KEY, "--warm", "2"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tiltyard", "sandbox", *options], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert any("Ctrl-C" in line for line in self.process.stdout)
        self.owners.add(_owner(self.process.pid))

    def end(self, number):
        self.process.send_signal(number)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def left(self):
        """Processes, control groups and folders of any of its lives."""
        found = [path for path in _processes() if any(owner in path for owner in self.owners)]
        for folder, names, _ in os.walk("/sys/fs/cgroup"):
            found += [f"{folder}/{name}" for name in names if any(owner in name for owner in self.owners)]
        for parent in Path("/tmp").glob("tiltyard-*"):
            found += [str(path) for path in parent.iterdir() if any(owner in path.name for owner in self.owners)]
        return found


def _processes():
    for folder in Path("/proc").iterdir():
        try:
            yield (folder / "cmdline").read_text() + (folder / "cgroup").read_text()
        except (OSError, UnicodeDecodeError):
            continue


def _owner(pid):
    """The name under which a server's keeper, a child of it, files everything."""
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_text().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        owned = [word for word in words if "/owner-" in word]
        if str(pid) in words and owned:
            return owned[0].rpartition("/owner-")[2]
    raise AssertionError(f"server {pid} has no keeper")


@pytest.fixture
def server(sandbox_server):
    del sandbox_server  # this machine can have sandboxes
    server = ServerProcess()
    try:
        server.start()
        yield server
    finally:
        if server.process.poll() is None:
            server.end(signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_that_is_killed_under_64_episodes_costs_those_it_held_and_no_other(server):
    """Each episode ends with its score or as failed, none is scored 0, and no process, group or folder stays."""
    before, lost_before = sandbox_report(), lost_leases()
    begun, all_begun = itertools.count(1), threading.Event()

    def script(request, turn):
        if turn == 3:
            return "done"
        number = next(begun) if turn == 0 else 0
        if number == EPISODES:
            all_begun.set()
        wait_s = 100 if 0 < number <= EPISODES else 0.1  # the first 64 are in mid-command when their server is killed
        return ToolCall("run_command", {"command": f"echo turn {turn} > t; sleep {wait_s}; cat t"})

    def kill_and_start_again():
        all_begun.wait()
        server.end(signal.SIGKILL)
        time.sleep(1)
        server.start()

    chaos = threading.Thread(target=kill_and_start_again)
    with OpenAIServer(script) as model:
        rollout = APIMultiTurnRollout(
            OpenAI(model="m", base_url=model.base_url, api_key="k"),
            None,
            env_factory=lambda: AgentEnv("base", server.url, KEY, start_timeout_s=60, run_id="storm"),
            max_turns=6,
            concurrency=EPISODES,
            reward_fns={"said": lambda trajectory: float("turn 2\n" in str(trajectory["messages"][-2]["content"]))},
            preflight=False,
        )
        chaos.start()
        results = rollout([{"messages": [{"role": "user", "content": "Count."}]} for _ in range(2 * EPISODES)])
        chaos.join()
    endings = Counter((result["stop_reason"], result["reward"]) for result in results)
    print(dict(endings))
    assert endings == {("lost_session", None): EPISODES, ("stop", 1.0): EPISODES}
    after = sandbox_report()
    assert (after.leaked - before.leaked, lost_leases() - lost_before) == (0, 0)
    assert AgentEnv.reap("storm", server.url, KEY) == []
    server.end(signal.SIGTERM)
    until = time.monotonic() + 10
    while (left := server.left()) and time.monotonic() < until:
        time.sleep(0.1)
    assert left == []
