"""What runs in a Ray actor: a host, whose calls block."""

import os
import pickle
import sys
import threading

from tiltyard.envs.pool.faults import packed, packed_error
from tiltyard.envs.pool.ray_lines import Line, hold
from tiltyard.envs.pool.workers import Host


class HostActor:
    """What runs in an actor: a host that it was sent. Every call of it blocks a thread of the actor."""

    def __init__(self, host: bytes, path: list[str], line: Line | None) -> None:
        if line is not None:
            hold(line)
        self._maker = host
        # Ray passes on the folder of the script that is run, and no other.
        sys.path += [folder for folder in path if folder not in sys.path]
        self._host: Host | None = None

    def start(self) -> tuple[bytes, int, str]:
        """Make the host: its first answer packed, this process, and its machine in the cluster."""
        try:
            host: Host = pickle.loads(self._maker)()  # noqa: S301  # from the process that started this one
            ready = packed(host.start(), "start")
            self._host = host
        except BaseException as error:  # noqa: BLE001  # told to the process that waits for it
            ready = packed_error(error, "the worker's start")
        import ray  # noqa: PLC0415  # this is an actor of it

        return ready, os.getpid(), ray.get_runtime_context().get_node_id()

    def run(self, number: int, request: bytes) -> bytes:
        """The answer to a request."""
        assert self._host is not None
        answers: list[bytes] = []
        done = threading.Lock()
        done.acquire()

        def answer(result: bytes) -> None:
            answers.append(result)
            done.release()

        self._host.begin(number, request, answer)
        done.acquire()
        return answers[0]

    def so_far(self, number: int) -> bytes:
        """What there is of an answer."""
        assert self._host is not None
        return self._host.so_far(number)

    def close(self) -> bytes:
        """The host's last answer."""
        assert self._host is not None
        return self._host.close()

    def watch(self) -> None:
        """Never returns: whoever waits for it is told when the actor is gone."""
        threading.Event().wait()
