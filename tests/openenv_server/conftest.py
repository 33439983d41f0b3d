"""Servers of Tiltyard, and sockets to them that speak the wire plainly."""

import json
from pathlib import Path

import pytest
from websockets.sync.client import connect

from tiltyard import resolve_env

ENVS = Path(__file__).parent / "served_envs.py"


class Wire:
    """A session on which each frame is written down in the test."""

    def __init__(self, socket):
        self.socket = socket

    def ask(self, kind, data=None):
        frame = {"type": kind} if data is None else {"type": kind, "data": data}
        self.socket.send(json.dumps(frame))
        return json.loads(self.socket.recv(timeout=20))

    def reset(self, **data):
        return self.ask("reset", data)["data"]

    def step(self, message):
        return self.ask("step", {"message": message})["data"]


@pytest.fixture
def serve():
    """Serve an environment of `served_envs.py`, or any other; the test fails where a server leaks."""
    servers = []

    def start(env, env_config=None, **options):
        spec = f"{ENVS}:{env}" if isinstance(env, str) and ":" not in env else env
        url, server = resolve_env(spec, env_config, **options)
        servers.append(server)
        return url, server

    yield start
    reports = [server.stop() for server in servers]
    assert [report.leaked + report.active for report in reports] == [0] * len(reports)


@pytest.fixture
def dial():
    """Open a session: `with dial(url) as wire`."""

    class Dialled:
        def __init__(self, url, **options):
            self.connection = connect(url.replace("http", "ws", 1) + "/ws", proxy=None, max_size=2**26, **options)

        def __enter__(self):
            return Wire(self.connection.__enter__())

        def __exit__(self, *raised):
            self.connection.__exit__(*raised)

    return Dialled
