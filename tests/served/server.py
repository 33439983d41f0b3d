"""SmolLM2-135M-Instruct behind llama.cpp's own OpenAI-compatible server, in a process of its own that can be killed.

Run as a script it is that process: `python tests/served/server.py PORT`. It ends with the process that started it.
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Self

from tiltyard.models.smollm2 import gguf_path

MODEL = "smollm2"
TEMPLATE = Path(__file__).with_name("chat.jinja")
PARALLEL = 8
CONTEXT = 2048
"""Tokens of one episode; a prompt beyond it is refused with status 400."""


class ModelServer:
    """The server's process. `kill` is what the kernel does to a process that took too much memory.

    Attributes:
        base_url: The address, with `/v1`; the same one after every start.
    """

    def __init__(self, threads: int = 1) -> None:
        self.base_url = ""
        self._port = 0
        self._threads = threads
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        """Start it, and wait until it says that it is well."""
        command = [sys.executable, __file__, str(self._port), str(self._threads)]
        with tempfile.TemporaryFile("w+") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            assert self._process.stdout is not None
            address = self._process.stdout.readline().strip()
            if not address:
                errors.seek(0)
                raise RuntimeError(f"the server did not start:\n{errors.read()[-2000:]}")
        self._port = int(address.rpartition(":")[2])
        self.base_url = f"{address}/v1"
        with urllib.request.urlopen(f"{address}/health", timeout=60) as response:
            assert json.load(response) == {"status": "ok"}
        return self

    def kill(self) -> None:
        """End it without a word, and free the port; more than one call does no harm."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.kill()


def serve(port: int, threads: int) -> None:
    """Serve until whoever started this process is gone."""
    import xllamacpp  # noqa: PLC0415 - tests that start no server do not load it

    params = xllamacpp.CommonParams()
    params.model.path = str(gguf_path())
    params.model_alias = {MODEL}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = PARALLEL
    params.n_ctx = CONTEXT * PARALLEL
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_threads_http = PARALLEL + 2
    params.chat_template = TEMPLATE.read_text()
    params.warmup = False
    params.ui = False
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
