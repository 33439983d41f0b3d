"""What does not want to go: it goes with its sandbox, and nothing is left."""

import asyncio
import json
import socket

import pytest
from box_worlds import WORLDS, content, play, python, sh, works

from tiltyard.errors import BoxArgumentError, BoxError, BoxGoneError
from tiltyard.sandbox.box_link import BoxLink
from tiltyard.sandbox.box_model import Exited
from tiltyard.sandbox.box_process import Command, Process
from tiltyard.sandbox.guest.wire import DONE, ENTRIES, EXITED, HEADER, STDOUT


@pytest.mark.parametrize("who", WORLDS)
def test_a_command_that_traps_every_signal_dies_with_its_sandbox(who):
    """TERM is asked, KILL is not: a trap holds nothing up."""

    async def scenario(maker):
        box = await maker.take("base")
        process = await box.spawn(
            "/bin/bash", ["-c", "trap '' TERM INT HUP QUIT; echo ready; while :; do sleep 0.1; done"]
        )
        output = process.subscribe()
        await anext(output)
        await process.signal(15)
        assert await works(box)
        assert process.exited is None
        await process.signal(9)
        assert [item async for item in output][-1] == Exited(-1, 9)
        stubborn = await box.spawn("/bin/bash", ["-c", "trap '' TERM; while :; do sleep 0.1; done"])
        await box.kill()
        assert stubborn.exited == Exited(-1, None, "the sandbox was killed")

    play(who, scenario)


@pytest.mark.parametrize("who", WORLDS)
def test_a_daemon_outlives_its_command_and_not_its_sandbox(who):
    """A process that left its group and session is still the sandbox's."""

    async def scenario(maker):
        box = await maker.take("base")
        daemon = "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(1000)\n os._exit(0)"
        assert (await python(box, daemon)).code == 0
        assert (await sh(box, "setsid sleep 1000 > /dev/null 2>&1 & disown; exit 0")).code == 0
        assert (await sh(box, "ps -eo comm,ppid")).out.split().count("1") >= 2
        await box.kill()

    play(who, scenario)


@pytest.mark.parametrize("who", WORLDS)
def test_kill_minus_one_ends_the_commands_and_not_the_sandbox(who):
    """The first process takes no signal from inside."""

    async def scenario(maker):
        box, other = await maker.take("base"), await maker.take("base")
        bystander = await box.spawn("sleep", ["1000"])
        await sh(box, "kill -9 -1")
        assert [item async for item in bystander.subscribe()] == [Exited(-1, 9)]
        assert box.processes() == []
        assert await works(box)
        assert await works(other)

    play(who, scenario)


@pytest.mark.parametrize("who", WORLDS)
def test_a_fifo_or_a_device_is_not_read_as_a_file(who):
    """What has no end, or waits for somebody, is refused at once."""

    async def scenario(maker):
        box = await maker.take("base")
        await sh(box, "mkfifo pipe; ln -s /dev/zero endless; python3 -c 'import socket; socket.socket(1).bind(\"s\")'")
        for path in ("pipe", "endless", "/dev/random", "s"):
            with pytest.raises(BoxArgumentError):
                await content(box, path)
        with pytest.raises(BoxArgumentError):
            await box.write_file("pipe", b"x")
        assert await works(box)

    play(who, scenario)


@pytest.mark.parametrize("who", WORLDS)
def test_a_sandbox_that_ends_by_itself_is_noticed(who):
    """Its commands end, calls say why, and what waits for its death is told."""

    async def scenario(maker):
        box = await maker.take("base")
        command = await box.spawn("sleep", ["1000"])
        reader = command.subscribe()
        await box.kill("time is up")
        assert [item async for item in reader] == [Exited(-1, None, "time is up")]
        assert not box.alive
        assert await box.wait_dead() == "time is up"
        with pytest.raises(BoxGoneError, match="time is up"):
            await box.spawn("true")
        await box.kill()
        assert maker.live == []

    play(who, scenario)


@pytest.mark.parametrize("who", WORLDS)
def test_a_sandbox_that_breaks_the_protocol_is_killed(who):
    """One that cannot be talked to any more is not left running."""

    async def scenario(maker):
        box = await maker.take("base")
        await sh(box, "setsid sleep 1000 > /dev/null 2>&1 & exit 0")
        box._link.data_received(HEADER.pack(1 << 30, DONE, 1))
        assert await box.wait_dead() == "the sandbox broke the protocol: a frame of 1073741824 bytes"
        assert not box.alive
        while maker.live:
            await asyncio.sleep(0.01)

    play(who, scenario)


async def _linked():
    """A link, and the end of it that can send what it likes."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return await BoxLink.over(ours, lambda _why: None), theirs


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), kind, channel) + payload


PID = _frame(DONE, 1, b'{"pid": 5}')

LIES = {
    "a frame that is too large": HEADER.pack(1 << 30, DONE, 1),
    "no JSON": _frame(DONE, 1, b"\xff\xfe"),
    "JSON without a bottom": _frame(DONE, 1, b"[" * 100_000),
    "an end that is no number": PID + _frame(EXITED, 1, json.dumps({"code": "x", "signal": []}).encode()),
    "more output than was granted": PID + _frame(STDOUT, 1, bytes(1 << 18)) + _frame(STDOUT, 1, b"x"),
    "output of no stream": PID + _frame(99, 1, b"x"),
    "entries where output was to be": PID + _frame(ENTRIES, 1, b"[]"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_first_process_that_was_taken_over_can_lie_and_do_no_harm(lie):
    """Whatever comes from inside is checked; what makes no sense ends the sandbox, not the host."""

    async def scenario():
        link, theirs = await _linked()
        process = Process(link, Command("true", (), {}, "/"), lambda _: None)
        starting = asyncio.create_task(process.start())
        await asyncio.sleep(0)
        theirs.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(theirs, LIES[lie])
        with pytest.raises(BoxGoneError, match="broke the protocol"):  # noqa: PT012 - at the start or in the output
            await starting
            exited = [item async for item in process.subscribe()][-1]
            raise BoxGoneError(exited.error)
        assert "broke the protocol" in link.gone
        theirs.close()

    asyncio.run(scenario())


def test_an_entry_that_makes_no_sense_ends_the_sandbox():
    """What a listing or a stat tells is checked field by field."""
    from tiltyard.sandbox.box_files import BoxFiles  # noqa: PLC0415 - used here only

    async def scenario():
        link, theirs = await _linked()
        asking = asyncio.create_task(BoxFiles(link).one("stat", path="/"))
        await asyncio.sleep(0)
        theirs.sendall(_frame(DONE, 1, b'{"kind": "file", "size": "big"}'))
        with pytest.raises(BoxError, match="broke the protocol"):
            await asking
        theirs.close()

    asyncio.run(scenario())
