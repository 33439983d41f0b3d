"""A run over workers, from an event loop: a thread takes the results, and a task of its own settles each."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tiltyard.rollout.beside import on_thread
from tiltyard.rollout.places import Places
from tiltyard.rollout.rollout_workers import RolloutWorkers
from tiltyard.rollout.trajectory import Trajectory


@asynccontextmanager
async def started(make: Callable[[], RolloutWorkers]) -> AsyncIterator[RolloutWorkers]:
    """Workers for as long as the context is entered: started and closed on threads, whatever is cancelled meanwhile."""
    starting = asyncio.ensure_future(on_thread(make))
    try:
        yield await asyncio.shield(starting)
    finally:
        await asyncio.shield(_closed(starting))


async def _closed(starting: "asyncio.Future[RolloutWorkers]") -> None:
    await asyncio.wait([starting])
    if starting.exception() is None:
        await on_thread(starting.result().close)


async def settle_all(places: Places, settle: Callable[[Trajectory], Awaitable[None]], most: int) -> None:
    """Take every result of a run and settle it; at any error, and when this is cancelled, the run is stopped.

    Args:
        places: The run.
        settle: What is done with each finished trajectory; it may take long, for instance to be scored.
        most: How many are being settled at one time; while so many are, nothing further is taken.

    Raises:
        BaseException: What the run, or settling a trajectory, raised first.
    """
    settling: set[asyncio.Task[None]] = set()

    async def one(trajectory: Trajectory) -> None:
        await settle(trajectory)

    try:
        while (found := await on_thread(places.take)) is not None:
            settling.add(asyncio.create_task(one(found[1].trajectory)))
            wait = asyncio.FIRST_COMPLETED if len(settling) >= most else None
            settling = await _remaining(settling, wait)
        await _remaining(settling, asyncio.FIRST_EXCEPTION)
    finally:
        places.stop()
        for task in settling:
            task.cancel()
        await asyncio.gather(*settling, return_exceptions=True)


async def _remaining(tasks: set[asyncio.Task[None]], wait: str | None) -> set[asyncio.Task[None]]:
    """Wait for some of the tasks, or for none; those that are not over. The first error of the others is raised."""
    if wait is not None and tasks:
        await asyncio.wait(tasks, return_when=wait)
    for task in tasks:
        if task.done():
            task.result()
    return {task for task in tasks if not task.done()}
