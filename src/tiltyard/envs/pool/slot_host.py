"""The program in every worker of a pool: its slots, a thread for each, and the requests that they share."""

import os
import pickle
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tiltyard._boundary import guarded
from tiltyard.envs.pool.faults import packed, packed_error
from tiltyard.envs.pool.recipe import EnvRecipe
from tiltyard.envs.pool.slot import Slot
from tiltyard.errors import EnvError, TiltyardError

CLOSE_TIMEOUT_S = 5.0
"""How long the environments of a worker may take to close, all at the same time."""

Call = tuple[int, str, tuple[Any, ...]]
"""One call of a request: the slot, the method, its arguments."""


class Request:
    """Several calls, each for the thread of a slot, that are answered together, once.

    A thread that takes its call first wakes the next: all woken at one time would wait for the interpreter's lock
    together, which costs more than the calls of quick environments.
    """

    def __init__(
        self, calls: Sequence[tuple["SlotThread", Callable[[], Any], str]], answer: Callable[[bytes], None]
    ) -> None:
        """Begin nothing yet.

        Args:
            calls: Of each the thread, what to run there, and what it is called in errors.
            answer: Called with the pickled list of the packed results, when all are there.
        """
        self._calls = iter(list(enumerate(calls)))
        self._results: list[bytes | None] = [None] * len(calls)
        self._missing = len(calls)
        self._answer = answer
        self._lock = threading.Lock()
        self._answered = False

    def go_on(self) -> None:
        """Give calls to their threads, until one of these begins at once: it goes on here."""
        for position, (thread, call, what) in self._calls:
            if thread.submit(self, position, call, what):
                return

    def put(self, position: int, result: bytes) -> None:
        """The result of one call; the last one answers."""
        with self._lock:
            self._results[position] = result
            self._missing -= 1
            if self._missing or self._answered:
                return
            self._answered = True
        self._answer(pickle.dumps(self._results))

    def so_far(self) -> bytes:
        """The results that there are, None for the others."""
        with self._lock:
            self._answered = True
            return pickle.dumps(self._results)


class SlotThread:
    """A slot and its thread: its environment is made, called and closed there, one call after the other."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.name = f"slot {slot.number}"
        self._todo: queue.SimpleQueue[tuple[Request, int, Callable[[], Any], str]] = queue.SimpleQueue()
        self._unfinished = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name=f"tiltyard-{self.name}", daemon=True)
        self._thread.start()

    def submit(self, request: Request, position: int, call: Callable[[], Any], what: str) -> bool:
        """Run a call of a request; False when it has to wait for another, which may take long."""
        with self._lock:
            self._unfinished += 1
            at_once = self._unfinished == 1
        self._todo.put((request, position, call, what))
        return at_once

    def _serve(self) -> None:
        while True:
            request, position, call, what = self._todo.get()
            request.go_on()
            request.put(position, _outcome(call, what))
            del request, call
            with self._lock:
                self._unfinished -= 1


@dataclass(frozen=True, slots=True)
class SlotHostMaker:
    """What is sent to a worker: makes its host."""

    recipe: EnvRecipe
    slots: tuple[int, ...]

    def __call__(self) -> "SlotHost":
        """The host."""
        return SlotHost(self.recipe, self.slots)


class SlotHost:
    """A `Host` of environments."""

    def __init__(self, recipe: EnvRecipe, slots: Iterable[int]) -> None:
        self._threads = {number: SlotThread(Slot(number, recipe)) for number in slots}
        self._requests: dict[int, Request] = {}

    def start(self) -> bytes:
        """Make all environments, at the same time: its process, and of each slot the facts or the error, packed."""
        calls = [(thread, thread.slot.make, "make") for thread in self._threads.values()]
        return pickle.dumps((os.getpid(), self._all(calls, None)))

    def begin(self, number: int, request: bytes, answer: Callable[[bytes], None]) -> None:
        """Give each call to the thread of its slot.

        Args:
            number: The request's own.
            request: A pickled list of `Call`s.
            answer: Called with a pickled list: of each call the packed result.
        """
        try:
            calls: list[Call] = guarded("reading a request", EnvError, pickle.loads, request)
        except TiltyardError as error:
            answer(packed_error(error, "the worker"))
            return
        threads = ((self._threads[index], method, arguments) for index, method, arguments in calls)
        work = [(thread, partial(thread.slot.run, method, arguments), method) for thread, method, arguments in threads]
        state = self._requests[number] = Request(work, partial(self._answered, number, answer))
        state.go_on()

    def so_far(self, number: int) -> bytes:
        """The results that a request has, as a pickled list with None for those that are missing."""
        request = self._requests.pop(number, None)
        return pickle.dumps([]) if request is None else request.so_far()

    def close(self) -> bytes:
        """Close every environment, whatever the others do: of each slot the packed outcome, or None where it hangs."""
        calls = [(thread, partial(thread.slot.run, "close", ()), "close") for thread in self._threads.values()]
        return pickle.dumps(self._all(calls, CLOSE_TIMEOUT_S))

    def _answered(self, number: int, answer: Callable[[bytes], None], results: bytes) -> None:
        self._requests.pop(number, None)
        answer(results)

    def _all(
        self, calls: Sequence[tuple[SlotThread, Callable[[], Any], str]], timeout_s: float | None
    ) -> list[bytes | None]:
        """Run one call on each thread, and wait for all."""
        done = threading.Event()
        named = [(thread, call, f"{thread.name}: {what}") for thread, call, what in calls]
        request = Request(named, lambda results: done.set())
        request.go_on()
        done.wait(timeout_s)
        return pickle.loads(request.so_far())  # noqa: S301  # our own


def _outcome(call: Callable[[], Any], what: str) -> bytes:
    """What a call gave, or what it raised: an environment that exits ends its episode, and not its worker."""
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  # carried to whoever asked
        return packed_error(error, what)
    return packed(result, what)
