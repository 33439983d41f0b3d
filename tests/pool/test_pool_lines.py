"""Connections from the processes of actors to the one that made them: their end is told, once, and to who waits."""

import contextlib
import os
import socket
import subprocess
import sys
import threading

import pytest

from tiltyard.envs.pool.ray_lines import Lines

HOLDS = """
import os, sys, threading
from tiltyard.envs.pool.ray_lines import hold
hold((sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3])))
sys.stdin.readline()
if sys.argv[4:] and os.fork() == 0:
    print("forked", flush=True)
    threading.Event().wait()
os._exit(0)
"""


@pytest.fixture
def lines():
    """On the loopback address."""
    found = Lines("127.0.0.1")
    yield found
    found.close()


def test_the_end_of_a_process_is_told(lines):
    """Also when one that it forked lives on."""
    gone = threading.Event()
    host, port, token = lines.expect(gone.set)
    command = [sys.executable, "-c", HOLDS, host, str(port), token.hex(), "fork"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0) as process:
        while token in lines._expected:  # it has not dialled yet
            assert process.poll() is None
        assert not gone.is_set()
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"forked\n"
        assert gone.wait(60)
        os.killpg(process.pid, 9)


def test_whoever_was_not_told_what_to_say_is_hung_up_on(lines):
    """What others are told stays valid."""
    gone = threading.Event()
    host, port, token = lines.expect(gone.set)
    for said in (b"x" * 16, token[:8]):
        with socket.create_connection((host, port)) as stranger:
            stranger.sendall(said)
            assert stranger.recv(1) == b""
    with socket.create_connection((host, port)) as friend:
        friend.sendall(token)
        friend.settimeout(0.1)
        with pytest.raises(TimeoutError):
            friend.recv(1)
        assert not gone.is_set()
    assert gone.wait(60)


def test_lines_that_are_closed_tell_nobody():
    """Whoever closes them knows."""
    lines, gone = Lines("127.0.0.1"), threading.Event()
    host, port, token = lines.expect(gone.set)
    with socket.create_connection((host, port)) as friend:
        friend.sendall(token)
        lines.close()
        with contextlib.suppress(ConnectionResetError):  # what it said may not have been read
            assert friend.recv(1) == b""
    assert not gone.is_set()


def test_an_address_of_another_machine_cannot_be_listened_on():
    """As where this process is beside the cluster: then Ray alone tells."""
    with pytest.raises(OSError, match="address"):
        Lines("192.0.2.1")
