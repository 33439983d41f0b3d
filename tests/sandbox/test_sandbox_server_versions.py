"""The newest SDK, and one of before the control plane was spelled another way, do the same things."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from tiltyard import LocalSandboxServer

ROUND = Path(__file__).with_name("sandbox_round.py")
OLD = Path(os.environ.get("TILTYARD_OLD_E2B", Path(__file__).parents[2] / ".venv-e2b-old/bin/python"))
"""An interpreter with an older SDK; `make test` installs one."""

EXPECTED = {
    "listed": True,
    "stdout": "1\n/home/user\n",
    "exit": [3, "out\n", "err\n"],
    "timeout": True,
    "fed": "fed",
    "killed": [True, False],
    "files": ["grüße", False, ["/home/user/d/f"]],
    "kept": True,
    "paused": [False, True],
    "ended": [True, False, False],
    "gone": True,
}


ORDINARY = 1500
"""The number of a user that has nothing on this machine."""


def played(python, url, key):
    """What the round gave, and with which version."""
    done = subprocess.run([python, ROUND, url, key], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    return tuple(map(int, told.pop("e2b").split("."))), told


def test_the_newest_sdk_plays_a_round(sandbox_server):
    """Every call of a sandbox's life, from create to what a dead one answers."""
    version, told = played(sys.executable, sandbox_server.url, sandbox_server.api_key)
    assert version >= (2, 51)
    assert told == EXPECTED


@pytest.mark.skipif(not OLD.exists(), reason=f"no older e2b at {OLD}; `make test` installs one")
def test_an_sdk_of_before_the_change_plays_the_same_round(sandbox_server):
    """Before 2.51 it makes sandboxes at `/sandboxes`, from then on at `/v2/sandboxes`."""
    version, told = played(OLD, sandbox_server.url, sandbox_server.api_key)
    assert version < (2, 51)
    assert told == EXPECTED


@pytest.mark.skipif(os.geteuid() != 0, reason="this is an ordinary user: the tests above are this one")
def test_the_server_of_an_ordinary_user_does_the_same(sandbox_server):
    """Nothing that a client sees depends on who runs the server."""
    told, tell = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: the copy starts none of them
        child = os.fork()
    if child == 0:
        serve_as(ORDINARY, tell)
    os.close(tell)
    try:
        with os.fdopen(told) as pipe:
            said = pipe.readline()
        version, round_told = played(sys.executable, *json.loads(said))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert version >= (2, 51)
    assert round_told == EXPECTED


def serve_as(user, tell):
    """In a forked child: be that user, serve, and say where."""
    try:
        os.setsid()
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        server = LocalSandboxServer(warm=1)
        os.write(tell, f"{json.dumps([server.url, server.api_key])}\n".encode())
        time.sleep(120)
    finally:
        os._exit(1)
