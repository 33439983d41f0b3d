"""`AgentEnv` with the newest SDK and with one of before the control plane was spelled another way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROUND = Path(__file__).with_name("agent_round.py")
OLD = Path(os.environ.get("TILTYARD_OLD_E2B", ROOT / ".venv-e2b-old/bin/python"))
"""An interpreter with an older SDK; `make test` installs one."""

PLAYED = {
    "seen": ["hello\n", "out\n[stderr]\nerr\n[exit code: 3]", "Wrote 4 bytes to /a.", "text"],
    "failures": ["EnvError", "LostSessionError"],
    "reaped": True,
    "left": 0,
}
REFUSED = {"refused": True}


def played(python):
    """What an episode was like on a server without `/sandboxes`, and on one without `/v2/sandboxes`."""
    places = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([python, ROUND], capture_output=True, text=True, timeout=60, check=False, env=places)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    return tuple(map(int, told["e2b"].split(".")[:2])), told["/sandboxes"], told["/v2/sandboxes"]


def test_the_newest_sdk_plays_on_newer_servers_and_says_what_is_wrong_with_older_ones():
    """405 is told with both cures."""
    version, newer, older = played(sys.executable)
    assert version >= (2, 51)
    assert (newer, older) == (PLAYED, REFUSED)


@pytest.mark.skipif(not OLD.exists(), reason=f"no older e2b at {OLD}; `make test` installs one")
def test_an_older_sdk_plays_on_older_servers_and_says_what_is_wrong_with_newer_ones():
    """As before, the other way round."""
    version, newer, older = played(OLD)
    assert version < (2, 51)
    assert (newer, older) == (REFUSED, PLAYED)
