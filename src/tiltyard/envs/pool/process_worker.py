"""A worker process: it runs a host that it was sent, and ends with the process that started it."""

import ctypes
import os
import pickle
import runpy
import signal
import socket
import struct
import sys
import threading
import types
from functools import partial
from typing import Any, BinaryIO

from tiltyard.envs.pool.faults import packed, packed_error

HEADER = struct.Struct("<BQQ")
"""Before each message: its kind, the number of the request, and how many bytes follow."""

SETUP, ASK, SO_FAR, CLOSE = range(4)
"""What is said to a worker."""

READY, ANSWER, PART, CLOSED = range(4)
"""What it says. READY is a packed value or error, the others what the host gave."""

MAIN = "__mp_main__"
PR_SET_PDEATHSIG = 1

_starting_main = threading.Event()


def executing_main() -> bool:
    """True in a worker that executes the user's script, in order to find the classes that it defines."""
    return _starting_main.is_set()


def main(descriptor: int, parent: int) -> None:
    """Serve until the other end of the channel closes, or asks for the end.

    Args:
        descriptor: Our end of the channel.
        parent: The process that this one ends with.
    """
    _end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the first process's to decide on
    channel = socket.socket(fileno=descriptor)
    channel.set_inheritable(False)
    # A child that an environment forks must not keep the channel open when this process is gone.
    os.register_at_fork(after_in_child=partial(os.close, descriptor))
    reader = channel.makefile("rb")
    lock = threading.Lock()
    try:
        host = _host(_received(reader)[2])
        ready = packed(host.start(), "start")
    except BaseException as error:  # noqa: BLE001  # told to the process that waits for it
        send(channel, lock, READY, 0, packed_error(error, "the worker's start"))
        return
    send(channel, lock, READY, 0, ready)
    while True:
        kind, number, body = _received(reader)
        if kind == ASK:
            host.begin(number, body, partial(send, channel, lock, ANSWER, number))
        elif kind == SO_FAR:
            send(channel, lock, PART, number, host.so_far(number))
        else:
            send(channel, lock, CLOSED, 0, host.close())
            return


def send(channel: socket.socket, lock: threading.Lock, kind: int, number: int, body: bytes) -> None:
    """Send one message, whole, from any thread; to a process that is gone nothing is sent."""
    with lock:
        try:
            channel.sendall(HEADER.pack(kind, number, len(body)) + body)
        except OSError:
            os._exit(1)


def read_message(reader: BinaryIO) -> tuple[int, int, bytes] | None:
    """The next message: kind, number and body; None at the end."""
    try:
        head = reader.read(HEADER.size)
        if len(head) < HEADER.size:
            return None
        kind, number, length = HEADER.unpack(head)
        body = reader.read(length)
    except (OSError, ValueError):
        return None
    return None if len(body) < length else (kind, number, body)


def _received(reader: BinaryIO) -> tuple[int, int, bytes]:
    message = read_message(reader)
    if message is None:
        os._exit(0)  # whoever asked is gone; threads whose environment hangs would be waited for
    return message


def _host(setup: bytes) -> Any:
    known: dict[str, Any] = pickle.loads(setup)  # noqa: S301  # from the process that started this one
    if known["main"] is not None:
        _execute_main(*known["main"])
    return pickle.loads(known["host"])()  # noqa: S301  # as above


def _execute_main(by_name: str | None, path: str | None) -> None:
    """Execute the user's script or module under another name, so that what it defines can be found as in `__main__`."""
    module = types.ModuleType(MAIN)
    _starting_main.set()
    try:
        if by_name is not None:
            content = runpy.run_module(by_name, run_name=MAIN, alter_sys=True)
        else:
            content = runpy.run_path(str(path), run_name=MAIN)
    finally:
        _starting_main.clear()
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules[MAIN] = module


def _end_with(parent: int) -> None:
    """Have the system end this process with its parent, even one that hangs; elsewhere the channel's end must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
