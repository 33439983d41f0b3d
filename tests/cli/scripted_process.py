"""The scripted server in a process of its own, to be killed: `python scripted_process.py PORT` prints its address."""

import subprocess
import sys


class ScriptedProcess:
    """A server that says "yes" to everything, after 10 ms. It keeps its address from one start to the next."""

    def __init__(self):
        self.port, self.base_url, self.process = "0", "", None

    def start(self):
        command = [sys.executable, __file__, self.port]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.base_url = self.process.stdout.readline().strip()
        self.port = self.base_url.removesuffix("/v1").rpartition(":")[2]
        return self

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


if __name__ == "__main__":
    from tiltyard.testing.openai_server import OpenAIServer

    server = OpenAIServer(lambda body, turn: "yes", latency_s=0.01, port=int(sys.argv[1])).start()
    print(server.base_url, flush=True)
    sys.stdin.read()  # until whoever started this process is gone
