"""What a pool asks of worker processes and of Ray actors alike: to run a host, take requests and tell of its end.

A worker runs one host. A request and its answer are bytes: who sends them says what they mean.
"""

from collections.abc import Callable
from typing import Protocol


class Host(Protocol):
    """The program in a worker, the same in a process and in an actor."""

    def start(self) -> bytes:
        """Make ready whatever takes time; what it returns is the worker's first answer. May raise."""
        ...

    def begin(self, number: int, request: bytes, answer: Callable[[bytes], None]) -> None:
        """Take a request and return at once; `answer` is called when it is done, from any thread, once."""
        ...

    def so_far(self, number: int) -> bytes:
        """What there is of the answer to a request that took too long; `answer` is not called for it any more."""
        ...

    def close(self) -> bytes:
        """Give back everything; what it returns is the worker's last answer."""
        ...


class Asked(Protocol):
    """A request that a worker was given."""

    def wait(self, timeout_s: float | None) -> bytes | None:
        """The answer; None when it has not come within the time (None waits as long as it takes).

        Raises:
            WorkerLostError: The worker is gone.
        """
        ...

    def so_far(self, timeout_s: float) -> bytes | None:
        """What there is of the answer when it is not waited for any longer; None when the worker does not say.

        Raises:
            WorkerLostError: The worker is gone.
        """
        ...


class Worker(Protocol):
    """One worker, from its start to its end; it is never started again, only replaced by another."""

    @property
    def name(self) -> str:
        """Names it in messages, e.g. "process 4711"."""
        ...

    @property
    def pid(self) -> int | None:
        """Its process, on whichever machine it runs; None when it is not known yet."""
        ...

    @property
    def node(self) -> str | None:
        """Which machine of the cluster it is on; None where there is no cluster."""
        ...

    @property
    def alive(self) -> bool:
        """False once it is known to be gone."""
        ...

    def ready(self, timeout_s: float | None) -> bytes | None:
        """What its host's `start` returned, packed; None when it has not within the time.

        Raises:
            WorkerLostError: It is gone.
        """
        ...

    def ask(self, request: bytes, timeout_s: float | None) -> Asked:
        """Send a request, and do not wait for its answer.

        Raises:
            WorkerLostError: It is gone, or does not take the request within the time; then it is killed.
        """
        ...

    def close(self, timeout_s: float) -> bytes | None:
        """Let it close its host and end, and make sure that it has; its last answer, None when it gave none in time."""
        ...

    def kill(self) -> None:
        """End it at once, whatever it does; waits for nothing."""
        ...


Lost = Callable[[Worker, str], None]
"""Told once when a worker is gone without having been closed: the worker, and why in words; from any thread."""


class Backend(Protocol):
    """Where workers come from."""

    at_hand: int
    """How many workers there is room for."""

    def check(self, workers: int) -> None:
        """Whether so many workers can be had at all.

        Raises:
            ConfigurationError: They cannot; says what is asked for and what there is.
        """
        ...

    def pickled(self, maker: Callable[[], Host], what: str) -> bytes:
        """What makes a host, as the bytes that a worker of this kind can read.

        Raises:
            ConfigurationError: It cannot be sent to one.
        """
        ...

    def start(self, number: int, host: bytes, threads: int, lost: Lost) -> Worker:
        """Start a worker, and do not wait until it is ready.

        Args:
            number: Its place in the pool.
            host: What `pickled` gave.
            threads: How many requests it must be able to work on at one time.
            lost: Told when it is gone.
        """
        ...

    def close(self) -> None:
        """Give back what the backend itself holds; its workers were closed before."""
        ...
