"""Output without end: it is held back, and holds nobody else up."""

import asyncio

import pytest
from box_worlds import WORLDS, play, sh, works

from tiltyard.sandbox.box_model import Exited

pytestmark = pytest.mark.parametrize("who", WORLDS)


def test_a_gigabyte_of_output_arrives_or_is_dropped_and_fills_no_memory(who):
    """Output that nobody reads holds the command up; read, it comes whole, a window at a time."""

    async def scenario(maker):
        box = await maker.take("base")
        process = await box.spawn("head", ["-c", "1G", "/dev/zero"])
        count = 0
        async with process.subscribe() as output:
            async for item in output:
                if isinstance(item, Exited):
                    assert item.exit_code == 0
                else:
                    count += len(item.data)
                    assert (
                        sum(len(waiting.data) for waiting in output.waiting if not isinstance(waiting, Exited))
                        < 1 << 20
                    )
        assert count == 1 << 30

    play(who, scenario)


def test_output_that_never_ends_blocks_nobody(who):
    """A reader that stopped reading holds up its own command, and no other command or file of the sandbox."""

    async def scenario(maker):
        box = await maker.take("base")
        endless = [await box.spawn("yes") for _ in range(3)]
        stuck = endless[0].subscribe()
        left = endless[1].subscribe()
        await anext(left)
        left.close()
        for _ in range(5):
            assert await works(box)
        assert sum(len(item.data) for item in stuck.waiting if not isinstance(item, Exited)) <= 256 * 1024
        for process in endless:
            await process.signal(15)
        async with asyncio.timeout(20):
            assert [item async for item in stuck][-1] == Exited(-1, 15)
        stuck.close()

    play(who, scenario)


def test_a_program_that_logs_on_after_its_command_is_held_up_and_not_killed(who):
    """A daemon that goes on writing to the command's output neither dies of it nor is read for ever."""

    async def scenario(maker):
        box = await maker.take("base")
        ran = await sh(box, "(yes; echo died > ~/died) & echo started")
        assert ran.code == 0
        assert ran.out.splitlines().count("started") == 1
        assert len(ran.out) <= 1 << 20
        for _ in range(5):
            assert await works(box)
        assert (await sh(box, "pgrep -c yes; ls ~/died")).out == "1\n"

    play(who, scenario)
