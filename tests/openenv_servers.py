"""Servers of the released `openenv` for the tests: processes that are started, killed and started again."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

HOST = Path(__file__).parent / "openenv_real" / "host.py"
START_S = 90.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def get_json(url: str, timeout_s: float = 5.0) -> object:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=timeout_s) as answer:
        return json.load(answer)


def wait_until(condition, timeout_s: float = 10.0, what: str = "the condition") -> None:
    """Wait for something that comes soon; a test that needs it fails when it does not."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"{what} did not come within {timeout_s} s"
        time.sleep(0.02)


def scaffold(folder: Path) -> Path:
    """Write `echo_env` with `openenv init`; returns the folder to import it from."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "echo_env").exists():
        command = [sys.executable, "-m", "openenv.cli", "init", "echo_env", "-o", str(folder)]
        subprocess.run(command, check=True, capture_output=True, text=True)
    return folder


class RealServers:
    """One process with every environment of `openenv_real/host.py`, each under its own path.

    `echo` is what `openenv init` writes; `odd` hangs, dies, breaks or sends 5 MB when it is told to; `slow` takes a
    second to be made, `broken` cannot be made; `single` declares no concurrency, `pair` takes two sessions; `tools` is
    an MCP environment, `code` runs Python.
    """

    def __init__(self, scaffolds: Path, port: int | None = None) -> None:
        self.scaffolds = scaffolds
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it where it does not run, and wait until it answers."""
        command = [sys.executable, str(HOST), str(self.scaffolds), str(self.port)]
        self.process = subprocess.Popen(command)
        end = time.monotonic() + START_S
        while True:
            assert self.process.poll() is None, "the server ended while it was started"
            assert time.monotonic() < end, f"the server did not answer within {START_S} s"
            try:
                get_json(f"{self.url('odd')}/health")
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.1)
            else:
                return

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}"

    def active(self, name: str) -> int:
        """How many sessions the server has."""
        count = get_json(f"{self.url(name)}/active")
        assert isinstance(count, int)
        return count

    def kill(self) -> None:
        """End it at once, as a crash does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
