"""Pausing without memory: the files are kept, the processes end, and the same sandbox begins again."""

import asyncio
import json
import time

import e2b
import pytest
from box_worlds import WORLDS, play

from tiltyard.sandbox.live import Sandboxes
from tiltyard.sandbox.live_sandbox import Asked
from tiltyard.sandbox.refusal import RefusedError


def test_a_sandbox_paused_without_its_memory_begins_again_with_its_files(sandbox):
    """It has the same id and token, another boot, and none of the processes."""
    boot = sandbox.files.read("/proc/sys/kernel/random/boot_id")
    sandbox.files.write("kept", "text")
    sandbox.commands.run("sleep 100", background=True).disconnect()
    assert sandbox.pause(keep_memory=False)
    assert (sandbox.is_running(), str(sandbox.get_info().state.value)) == (False, "paused")
    again = sandbox.connect(timeout=60)
    assert again.sandbox_id == sandbox.sandbox_id
    assert again.files.read("kept") == "text"
    assert again.files.read("/proc/sys/kernel/random/boot_id") != boot
    assert again.commands.run("pgrep -c sleep || true").stdout == "0\n"


def test_what_is_written_after_it_began_again_is_kept_the_next_time(sandbox):
    """A sandbox is paused so as often as is wanted, and then with its memory too."""
    for turn in ("one", "two"):
        sandbox.commands.run(f"echo {turn} >> turns")
        sandbox.pause(keep_memory=False)
        sandbox.connect(timeout=60)
    sandbox.pause()
    sandbox.connect(timeout=60)
    assert sandbox.files.read("turns") == "one\ntwo\n"


def test_variables_and_watchers_belong_to_the_sandbox_and_to_its_run(sdk):
    """What a sandbox was made with is there again; a watcher was of the run that ended."""
    made = sdk.Sandbox.create("base", timeout=60, envs={"MINE": "here"})
    watch = made.files.watch_dir(".")
    made.pause(keep_memory=False)
    made.connect(timeout=60)
    assert made.commands.run("echo $MINE").stdout == "here\n"
    with pytest.raises(e2b.SandboxException):
        watch.get_new_events()
    made.kill()


def test_the_end_of_time_pauses_without_memory_where_that_was_asked_for(sdk):
    """And no request wakes it: a client connects."""
    made = sdk.Sandbox.create("base", timeout=60, lifecycle={"on_timeout": {"action": "pause", "keep_memory": False}})
    made.files.write("kept", "text")
    made.set_timeout(0)
    while made.is_running():
        time.sleep(0.05)
    assert made.get_info().state == e2b.SandboxState.PAUSED
    assert made.connect(timeout=60).files.read("kept") == "text"
    made.kill()


def test_one_that_cannot_be_paused_at_the_end_of_its_time_is_killed(wire):
    """Files that cannot be kept are no reason to live for ever."""
    made = wire.create(autoPause=True, autoPauseMemory=False)
    body = {"process": {"cmd": "/bin/bash", "args": ["-c", "truncate -s 4G /home/user/hole"]}}
    frame = bytes(1) + len(data := json.dumps(body).encode()).to_bytes(4, "big") + data
    wire.http.post(
        "/process.Process/Start",
        content=frame,
        headers={**wire.access(made), "Content-Type": "application/connect+json"},
    )
    place = f"/sandboxes/{made['sandboxID']}"
    assert wire.api("POST", f"{place}/pause", {"memory": False}).status_code == 409
    assert wire.api("GET", place).json()["state"] == "running"
    wire.api("POST", f"{place}/timeout", {"timeout": 0})
    until = time.monotonic() + 30
    while wire.api("GET", place).status_code != 404:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_sandbox_that_was_paused_with_its_memory_can_begin_again_without(sandbox, wire):
    """The way out where what runs in it hangs."""
    sandbox.files.write("kept", "text")
    sandbox.commands.run("sleep 100", background=True).disconnect()
    sandbox.pause()
    answer = wire.api("POST", f"/sandboxes/{sandbox.sandbox_id}/connect", {"timeout": 60, "memory": False})
    assert answer.status_code == 201
    assert sandbox.commands.run("cat kept; pgrep -c sleep || true").stdout == "text0\n"


def test_it_cannot_wake_on_use(wire):
    """A request would meet none of the processes that it is for."""
    answer = wire.api(
        "POST",
        "/v2/sandboxes",
        {"templateID": "base", "autoPause": True, "autoPauseMemory": False, "autoResume": {"enabled": True}},
    )
    assert answer.status_code == 400


@pytest.mark.parametrize("who", WORLDS)
def test_a_paused_sandbox_that_is_killed_leaves_no_files(who):
    """Nothing is kept of one that will not begin again; nor of one that has."""

    async def scenario(maker):
        sandboxes = Sandboxes(maker, maker.templates, 4)
        made, other = [await sandboxes.create(Asked("base", 60)) for _ in range(2)]
        for each in (made, other):
            await sandboxes.pause(each, memory=False)
        assert (len(list(maker._folder.glob("owner-*/kept-*"))), maker.live) == (2, [])
        assert await sandboxes.resume(other, 60)
        await sandboxes.kill(made)
        with pytest.raises(RefusedError, match="was not found"):
            await sandboxes.resume(made, 60)
        assert list(maker._folder.glob("owner-*/kept-*")) == []
        await sandboxes.close()

    play(who, scenario)


def test_one_that_is_killed_while_it_begins_again_is_gone():
    """Neither the sandbox, nor the box that was made for it, nor its files are left."""

    async def scenario(maker):
        sandboxes = Sandboxes(maker, maker.templates, 4)
        made = await sandboxes.create(Asked("base", 60))
        await sandboxes.pause(made, memory=False)
        again = asyncio.ensure_future(sandboxes.resume(made, 60))
        await asyncio.sleep(0)
        await sandboxes.kill(made)
        with pytest.raises(RefusedError, match="was not found"):
            await again
        assert (maker.live, list(maker._folder.glob("owner-*/kept-*")), len(sandboxes)) == ([], [], 0)
        await sandboxes.close()

    play(WORLDS[0], scenario)
