"""Starts worker processes from one thread that never ends, since Linux ends them with the thread that started them."""

import os
import queue
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from tiltyard._boundary import guarded
from tiltyard.errors import EnvError

Started = Callable[[Any], None]

_lock = threading.Lock()
_orders: dict[int, "queue.SimpleQueue[tuple[list[str], int, Started]]"] = {}


def start_process(command: list[str], descriptor: int) -> "subprocess.Popen[bytes]":
    """Start a process in a group of its own, so that it can be ended with everything that it starts.

    Args:
        command: The program and its arguments.
        descriptor: The one file that it is given, beside the standard ones; it reads nothing from its standard input.

    Raises:
        EnvError: The system could not start it.
    """
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    _queue().put((command, descriptor, told.put))
    outcome = told.get()
    if isinstance(outcome, EnvError):
        raise outcome
    return outcome


def _queue() -> "queue.SimpleQueue[tuple[list[str], int, Started]]":
    """This process's; a forked process has none of its parent's threads, and so a queue of its own."""
    with _lock:
        orders = _orders.get(os.getpid())
        if orders is None:
            orders = _orders[os.getpid()] = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(orders,), name="tiltyard-start", daemon=True).start()
        return orders


def _serve(orders: "queue.SimpleQueue[tuple[list[str], int, Started]]") -> None:
    while True:
        command, descriptor, tell = orders.get()
        try:
            tell(guarded("starting a worker process", EnvError, _start, command, descriptor))
        except EnvError as error:
            tell(error)


def _start(command: list[str], descriptor: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, pass_fds=[descriptor], stdin=subprocess.DEVNULL, process_group=0)  # noqa: S603  # our own program
