"""This machine has no room or no descriptors left: what is asked for then is refused, and nothing else is lost."""

import asyncio
import os
import resource
from contextlib import contextmanager

import pytest
from box_worlds import WORLDS, play, works

from tiltyard.errors import BoxGoneError
from tiltyard.sandbox.live import Sandboxes
from tiltyard.sandbox.live_sandbox import Asked
from tiltyard.sandbox.refusal import RefusedError

pytestmark = pytest.mark.parametrize("who", WORLDS)


@contextmanager
def limited(kind, most, pid=0):
    """A process that may have no more than so much."""
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, kind, before)


def test_a_keeper_without_descriptors_starts_no_sandbox_and_loses_none(who):
    """At whatever step they end."""

    async def scenario(maker):
        kept = await maker.take("base")
        keeper = maker._keeping._process.pid
        held = len(os.listdir(f"/proc/{keeper}/fd"))
        for most in range(held - 1, held + 7):
            with limited(resource.RLIMIT_NOFILE, most, keeper), pytest.raises(BoxGoneError, match="open files"):
                await maker.take("base")
        assert await works(kept)
        assert await works(await maker.take("base"))

    play(who, scenario)


def test_a_machine_without_room_starts_no_sandbox_and_says_so(who):
    """The server answers with the reason, and makes them again once there is room."""

    async def scenario(maker):
        sandboxes = Sandboxes(maker, maker.templates, 4)
        with limited(resource.RLIMIT_FSIZE, 0), pytest.raises(RefusedError, match="cannot start a sandbox") as refused:
            await sandboxes.create(Asked("base", 60))
        assert refused.value.status == 500
        assert await works((await sandboxes.create(Asked("base", 60))).box)
        await sandboxes.close()

    play(who, scenario)


def test_files_that_this_machine_has_no_room_for_are_not_kept(who):
    """The sandbox goes on; at the end of its time it is killed, since it cannot be paused."""

    async def scenario(maker):
        sandboxes = Sandboxes(maker, maker.templates, 4)
        made = await sandboxes.create(Asked("base", 60, on_timeout="pause", keep_memory=False))
        await made.box.write_file("/tmp/much", bytes(1 << 20))
        with limited(resource.RLIMIT_FSIZE, 64 * 1024):
            for keeping in (sandboxes.take_snapshot(made, "then"), sandboxes.pause(made, memory=False)):
                with pytest.raises(RefusedError, match="cannot be kept on this machine") as refused:
                    await keeping
                assert refused.value.status == 409
            assert await works(made.box)
            sandboxes.set_timeout(made, 0)
            while len(sandboxes):
                await asyncio.sleep(0.02)
        assert list(maker._folder.glob("owner-*/kept-*")) == []
        await sandboxes.close()

    play(who, scenario)
