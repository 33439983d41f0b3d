"""Coroutines that other people's code returns where a value is wanted: async environments and tools."""

import asyncio
import os
import threading
from types import CoroutineType
from typing import Any

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def awaited(value: Any) -> Any:
    """The value; where it is a coroutine, what it returns.

    All coroutines run on one event loop, on a daemon thread of its own that starts with the first of them: what an
    environment opens in one step, such as a connection, it can use in the next. The calling thread waits.

    Raises:
        BaseException: Whatever the coroutine raised.
    """
    if type(value) is not CoroutineType:
        return value
    loop = _loop()
    try:
        on_that_loop = asyncio.get_running_loop() is loop
    except RuntimeError:
        on_that_loop = False
    if on_that_loop:
        value.close()
        raise RuntimeError("a coroutine was returned to code that cannot wait for it: await it where it is made")
    future = asyncio.run_coroutine_threadsafe(value, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _loop() -> asyncio.AbstractEventLoop:
    """This process's loop for them; a forked process has none of its parent's threads, and so a loop of its own."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="tiltyard-async", daemon=True).start()
        return loop
