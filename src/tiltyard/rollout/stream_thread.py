"""An async stream for callers that do not await."""

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from typing import Any

_END = object()


class StreamThread:
    """An async stream, read on a thread with an event loop of its own, with room for some results."""

    def __init__(self, make: Callable[[], AsyncGenerator[dict[str, Any]]], room: int) -> None:
        """Begin to read.

        Args:
            make: Makes the stream, on the thread.
            room: How many results wait for the reader at most.
        """
        self._make = make
        self._ready: queue.Queue[Any] = queue.Queue(room)
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tiltyard-stream", daemon=True)
        self._thread.start()

    def results(self) -> Generator[dict[str, Any]]:
        """What the stream gives.

        Raises:
            BaseException: Whatever the stream raised.
        """
        while (result := self._ready.get()) is not _END:
            yield result
        self._thread.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the run, and wait until its environments have had their time to close."""
        self._stopped.set()
        if self._thread.is_alive():
            if self._loop is not None and self._task is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(timeout=10.0)

    def _run(self) -> None:
        try:
            asyncio.run(self._read())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001  # carried to the thread that reads
            self._error = error
        finally:
            self._put(_END)

    async def _read(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        async with aclosing(self._make()) as stream:
            async for result in stream:
                # Blocks the loop only as long as the reader leaves no room, and not once it has stopped.
                while self._ready.full() and not self._stopped.is_set():
                    await asyncio.sleep(0.01)
                self._put(result)

    def _put(self, item: Any) -> None:
        while not self._stopped.is_set():
            try:
                self._ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return
