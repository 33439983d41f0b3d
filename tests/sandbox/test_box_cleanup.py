"""Whatever dies, and however: no process, no control group and no folder is left."""

import asyncio
import os
import signal
import tempfile

import pytest
from box_worlds import WORLDS, gone, groups_of, hosted, play, processes_of, sh, wait_for

from tiltyard.errors import BoxGoneError
from tiltyard.sandbox.box_model import Exited
from tiltyard.sandbox.keeping import sweep

pytestmark = pytest.mark.parametrize("who", WORLDS)


async def busy(maker) -> None:
    """Three sandboxes: one with a daemon that left its group, one that is paused, one with nothing."""
    first, second, _ = [await maker.take("base") for _ in range(3)]
    await sh(first, "setsid bash -c 'trap \"\" TERM HUP; while :; do sleep 0.1; done' > /dev/null 2>&1 & exit 0")
    await second.spawn("sleep", ["1000"])
    await second.pause()


def test_a_host_that_is_killed_leaves_nothing(who):
    """Its keeper sees it go and clears everything away at once, paused sandboxes too."""
    with hosted(who, busy) as host:
        keeper, boxes = host.keeper, host.boxes()
        assert len(boxes) == 6
        os.kill(host.pid, signal.SIGKILL)
        assert wait_for(lambda: gone(keeper))
        assert all(gone(pid) for pid in boxes)
        assert list(host.folder.iterdir()) == []
        assert groups_of(host.token) == []
        assert host.user is None or wait_for(lambda: not processes_of(host.user))


def test_a_fork_of_the_host_does_not_keep_its_sandboxes_alive(who):
    """The keeper watches the process, not only the socket that a copy of it holds too."""

    async def scenario(maker):
        await maker.take("base")
        copy = os.fork()
        if copy == 0:
            signal.pause()
        copies.write(f"{copy}\n")
        copies.flush()

    with tempfile.TemporaryFile("w+") as copies, hosted(who, scenario) as host:
        copies.seek(0)
        copy = int(copies.read())
        try:
            keeper, boxes = host.keeper, host.boxes()
            os.kill(host.pid, signal.SIGKILL)
            assert wait_for(lambda: gone(keeper))
            assert all(gone(pid) for pid in boxes)
            assert not gone(copy)
        finally:
            os.kill(copy, signal.SIGKILL)


def test_what_a_crash_of_host_and_keeper_left_is_swept_at_the_next_start(who):
    """The processes die by themselves; a sweep removes folder and control groups, and leaves those of the living."""
    with hosted(who, busy) as living, hosted(who, busy) as dead:
        boxes = dead.boxes()
        os.kill(dead.keeper, signal.SIGSTOP)
        keeper = dead.keeper
        os.kill(dead.pid, signal.SIGKILL)
        os.kill(keeper, signal.SIGKILL)
        assert wait_for(lambda: gone(keeper))
        assert sweep(dead.folder) == 1
        assert wait_for(lambda: all(gone(pid) for pid in boxes))
        assert list(dead.folder.iterdir()) == []
        assert groups_of(dead.token) == []
        assert dead.user is not None or not any(map(gone, living.boxes()))
        assert sweep(living.folder) == 0
        assert len(living.boxes()) == 6


def test_a_keeper_that_dies_ends_its_sandboxes_and_says_so(who):
    """Commands end with the reason, and what is asked then is refused with what to do."""

    async def scenario(maker):
        box = await maker.take("base")
        command = await box.spawn("sleep", ["1000"])
        os.kill(maker._keeping._process.pid, signal.SIGKILL)
        [exited] = [item async for item in command.subscribe()]
        assert isinstance(exited, Exited)
        assert exited.error
        assert await box.wait_dead()
        with pytest.raises(BoxGoneError):
            await box.stat("/")
        with pytest.raises(BoxGoneError, match="start the server again"):
            await maker.take("base")
        await maker.close()
        sweep(maker._folder)

    play(who, scenario)


def test_killing_many_at_once_leaves_nothing(who):
    """Twenty sandboxes with busy processes are gone together."""

    async def scenario(maker):
        boxes = await asyncio.gather(*(maker.take("base") for _ in range(20)))
        await asyncio.gather(*(sh(box, "for i in 1 2 3; do sleep 1000 & done; exit 0") for box in boxes))
        await asyncio.gather(*(box.kill() for box in boxes), *(box.kill() for box in boxes))
        assert maker.live == []

    play(who, scenario)
