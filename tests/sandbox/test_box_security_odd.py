"""Files, folders and answers of odd forms: they are told as far as they can be, and the sandbox goes on."""

import asyncio
import json
import socket

import pytest
from box_worlds import WORLDS, play, python, works

from tiltyard.errors import BoxArgumentError, BoxError, BoxGoneError, BoxPermissionError
from tiltyard.sandbox.box_files import BoxFiles
from tiltyard.sandbox.box_link import BoxLink
from tiltyard.sandbox.box_model import BoxLimits
from tiltyard.sandbox.box_process import Command, Process
from tiltyard.sandbox.box_state import BoxState
from tiltyard.sandbox.cgroups import GroupOrder
from tiltyard.sandbox.entries import entry_json
from tiltyard.sandbox.guest.wire import DONE, GRANT, HEADER, NUMBER, WINDOW

DEEP = """
import os
for _ in range({levels}):
    os.mkdir({name!r})
    os.chdir({name!r})
"""

LONG_NAMES = DEEP.format(levels=14, name="d" * 250) + "\nfor at in range(120): open(b'%03d' % at + b'\\xff' * 250, 'w')"


@pytest.mark.parametrize("who", WORLDS)
def test_a_file_of_a_time_that_no_calendar_has_is_told_with_the_last_one(who):
    """Any number can be set as a file's time; that does not make its folder unreadable."""

    async def scenario(maker):
        box = await maker.take("base")
        await python(box, "import os; open('f', 'w'); os.utime('f', ns=(0, 2**62)); os.mkfifo('p')")
        await python(box, "import os; open('g', 'w'); os.utime('g', (0, -2**40))")
        told = {entry.name: entry_json(entry)["modifiedTime"] for entry in await box.list_dir("/home/user")}
        assert told["f"].startswith("2116-")
        assert told["g"] == "0001-01-01T00:00:00.000000Z"

    play(who, scenario)


@pytest.mark.parametrize("who", WORLDS)
def test_a_folder_of_long_names_that_are_no_text_is_listed(who):
    """A byte that is no UTF-8 takes six in a frame: no portion of a listing grows past the largest frame."""

    async def scenario(maker):
        box = await maker.take("base")
        assert (await python(box, LONG_NAMES)).err == ""
        assert len(await box.list_dir("/home/user", 64)) == 14 + 120
        assert await works(box)

    play(who, scenario)


@pytest.mark.parametrize("who", WORLDS)
def test_folders_within_folders_without_end_are_watched(who):
    """How deep they go is limited by the length of a path, not by the watcher's stack."""

    async def scenario(maker):
        box = await maker.take("base")
        assert (await python(box, DEEP.format(levels=1900, name="d"))).err == ""
        watch = await box.watch("/home/user", recursive=True)
        await python(box, f"open('{'d/' * 1900}f', 'w')")
        assert (await anext(watch)).kind == "create"
        await watch.close()
        assert await works(box)

    play(who, scenario)


@pytest.mark.parametrize("who", WORLDS)
def test_a_program_of_a_name_without_end_is_not_found_and_holds_nothing_up(who):
    """What went wrong is told in a few bytes, so that telling it never waits for a reader."""

    async def scenario(maker):
        box = await maker.take("base")
        for what in ({"cmd": "a" * 100_000}, {"cmd": "/" + "b" * 100_000}, {"cmd": "true", "cwd": "/" + "c/" * 50_000}):
            with pytest.raises(BoxError):
                await asyncio.wait_for(box.spawn(**what), 20)
        assert await works(box)

    play(who, scenario)


@pytest.mark.parametrize("who", WORLDS)
def test_a_terminal_of_a_size_that_no_terminal_has_is_refused(who):
    """Neither when it is opened nor later; the sandbox does not end of it."""

    async def scenario(maker):
        box = await maker.take("base")
        terminal = await box.spawn("sleep", ["100"], pty=(24, 80))
        for size in ((-1, 80), (24, 0), (24, 10**30)):
            with pytest.raises(BoxArgumentError, match="from 1 to 65535 rows"):
                await box.spawn("true", pty=size)
            with pytest.raises(BoxArgumentError, match="from 1 to 65535 rows"):
                await terminal.resize(*size)
        assert await works(box)

    play(who, scenario)


@pytest.mark.parametrize("who", WORLDS)
def test_metadata_of_an_odd_form_is_refused_or_kept(who):
    """A name that no file system takes is the caller's mistake; more than can be told is not told."""

    async def scenario(maker):
        box = await maker.take("base")
        with pytest.raises(BoxArgumentError):
            await box.write_file("f", b"x", metadata={"a" * 300: "x"})
        await box.write_file("f", b"x", metadata={"a": "v" * 60_000})
        await python(box, "import os\nfor at in range(4): os.setxattr('f', f'user.e2b.{at}', b'\\xff' * 60_000)")
        assert (await box.stat("f")).metadata == {}
        await box.write_file("f", b"y", metadata={"b": "w"})
        assert (await box.stat("f")).metadata == {"b": "w"}
        with pytest.raises(BoxPermissionError):
            await box.move("/proc", "p")

    play(who, scenario)


def _frame(kind, channel, payload):
    return HEADER.pack(len(payload), kind, channel) + payload


async def _linked():
    """A link, and the end of it that can send what it likes."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    return await BoxLink.over(ours, lambda _why: None), theirs


async def _told(call, link, theirs, answer):
    asking = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    theirs.sendall(answer)
    try:
        return await asking
    finally:
        assert "broke the protocol" in (link.gone or "")
        theirs.close()


ENTRY = {
    "name": "f",
    "path": "/f",
    "kind": "file",
    "size": 1,
    "mode": 0,
    "permissions": "",
    "owner": "",
    "group": "",
    "modified_ns": 0,
    "symlink_target": None,
    "metadata": {},
}


@pytest.mark.parametrize(
    "numbers", [{"size": float("inf")}, {"size": 10**400}, {"modified_ns": 1 << 200}, {"mode": 1e999}]
)
def test_an_entry_with_numbers_that_no_file_has_ends_the_sandbox(numbers):
    """A first process that was taken over can tell nothing that breaks the host's arithmetic."""

    async def scenario():
        link, theirs = await _linked()
        answer = _frame(DONE, 1, json.dumps({**ENTRY, **numbers}).encode())
        with pytest.raises(BoxGoneError):
            await _told(BoxFiles(link).one("stat", path="/f"), link, theirs, answer)

    asyncio.run(scenario())


def test_a_process_without_a_number_ends_the_sandbox():
    """So that what was started can be found again, or is gone."""

    async def scenario():
        link, theirs = await _linked()
        process = Process(link, Command("true", (), {}, "/"), lambda _: None)
        with pytest.raises(BoxGoneError):
            await _told(process.start(), link, theirs, _frame(DONE, 1, b'{"pid": Infinity}'))

    asyncio.run(scenario())


def test_metrics_that_are_no_number_end_the_sandbox():
    """They would not even be JSON for the client."""

    async def scenario():
        link, theirs = await _linked()
        state = BoxState(link, 1, GroupOrder())
        answer = _frame(DONE, 1, b'{"cpu_s": NaN, "memory": 1, "disk_used": 1, "disk_total": 1}')
        with pytest.raises(BoxGoneError):
            await _told(state.metrics(BoxLimits()), link, theirs, answer)

    asyncio.run(scenario())


def test_a_sandbox_that_grants_without_reading_holds_no_upload_in_the_host():
    """Whatever it grants, no more than a window is on the way to it."""

    async def scenario():
        link, theirs = await _linked()
        channel = link.open("write", {"path": "/f", "metadata": {}})
        theirs.sendall(_frame(GRANT, 1, NUMBER.pack(0xFFFFFFFF)) * 1000)
        await asyncio.sleep(0.01)
        sending = asyncio.ensure_future(channel.send(bytes(16 * WINDOW)))
        await asyncio.sleep(0.01)
        assert not sending.done()
        assert link._transport is not None
        assert link._transport.get_write_buffer_size() <= 2 * WINDOW
        link.close("enough")
        with pytest.raises(BoxGoneError):
            await sending
        theirs.close()

    asyncio.run(scenario())
