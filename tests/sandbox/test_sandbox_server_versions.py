"""The newest SDK, and one of before the control plane was spelled another way, do the same things."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROUND = Path(__file__).with_name("sandbox_round.py")
OLD = Path(os.environ.get("TILTYARD_OLD_E2B", Path(__file__).parents[2] / ".venv-e2b-old/bin/python"))
"""An interpreter with an older SDK; `make test` installs one."""

EXPECTED = {
    "listed": True,
    "stdout": "1\n/home/user\n",
    "exit": [3, "out\n", "err\n"],
    "timeout": True,
    "fed": "fed",
    "killed": [True, []],
    "files": ["grüße", False, ["/home/user/d/f"]],
    "paused": [False, True],
    "ended": [True, False, False],
    "gone": True,
}


def played(python, server):
    """What the round gave, and with which version."""
    done = subprocess.run(
        [python, ROUND, server.url, server.api_key], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    return tuple(map(int, told.pop("e2b").split("."))), told


def test_the_newest_sdk_plays_a_round(sandbox_server):
    """Every call of a sandbox's life, from create to what a dead one answers."""
    version, told = played(sys.executable, sandbox_server)
    assert version >= (2, 51)
    assert told == EXPECTED


@pytest.mark.skipif(not OLD.exists(), reason=f"no older e2b at {OLD}; `make test` installs one")
def test_an_sdk_of_before_the_change_plays_the_same_round(sandbox_server):
    """Before 2.51 it makes sandboxes at `/sandboxes`, from then on at `/v2/sandboxes`."""
    version, told = played(OLD, sandbox_server)
    assert version < (2, 51)
    assert told == EXPECTED
