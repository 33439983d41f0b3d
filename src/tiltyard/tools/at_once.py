"""Several blocking calls at the same time, on threads of their own."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

MAX_THREADS = 16
"""How many calls of one turn run at the same time; further ones wait for a free thread."""


def run_at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Run the calls and return their results in the order of the calls.

    Waits until all have ended, also when one raises; the threads die with the process.

    Raises:
        BaseException: What the first of the calls raised, in their order.
    """
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}
    todo = iter(range(len(calls)))
    lock = threading.Lock()

    def serve() -> None:
        while True:
            with lock:
                index = next(todo, None)
            if index is None:
                return
            try:
                results[index] = calls[index]()
            except BaseException as error:  # noqa: BLE001  # carried to the thread that waits
                errors[index] = error

    count = min(len(calls), MAX_THREADS)
    threads = [threading.Thread(target=serve, name=f"tiltyard-tool-{number}", daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[index] for index in range(len(calls))]
