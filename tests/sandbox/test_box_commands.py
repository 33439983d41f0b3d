"""Commands in a sandbox: their input, output and end."""

import asyncio

import pytest
from box_worlds import WORLDS, Ran, play, python, sh

from tiltyard.errors import BoxArgumentError, BoxPathMissingError, BoxPermissionError
from tiltyard.sandbox.box_model import Exited, Output

pytestmark = pytest.mark.parametrize("who", WORLDS)


def test_output_error_and_code_of_a_command_are_told_apart(who):
    """Streams are separate; bytes are bytes; the code is the code."""

    async def scenario(maker):
        box = await maker.take("base")
        assert await sh(box, "echo out; echo err >&2; exit 3") == Ran("out\n", "err\n", 3, None)
        process = await box.spawn("printf", [r"\xff\xfe\0x"])
        items = [item async for item in process.subscribe()]
        assert items == [Output("stdout", b"\xff\xfe\0x"), Exited(0)]
        assert await sh(box, "kill -11 $$") == Ran("", "", -1, 11)

    play(who, scenario)


def test_a_command_ends_with_its_main_process_though_a_child_holds_its_output(who):
    """`sleep 1000 & echo started` is over when the shell is, with all that was written by then."""

    async def scenario(maker):
        box = await maker.take("base")
        assert await sh(box, "sleep 1000 & echo started") == Ran("started\n", "", 0, None)
        ran = await sh(box, "head -c 60000 /dev/zero; sleep 1000 & exit 4")
        assert (len(ran.out), ran.code) == (60000, 4)
        assert box.processes() == []

    play(who, scenario)


def test_standard_input_is_empty_unless_it_is_asked_for(who):
    """Without it a command that reads ends at once; with it, it reads what it is sent until it is closed."""

    async def scenario(maker):
        box = await maker.take("base")
        assert await sh(box, "cat; echo done") == Ran("done\n", "", 0, None)
        process = await box.spawn("wc", ["-c"], stdin=True)
        await process.send_stdin(b"x" * 1_000_000)
        await process.send_stdin(b"y")
        await process.close_stdin()
        assert [item async for item in process.subscribe()] == [Output("stdout", b"1000001\n"), Exited(0)]

    play(who, scenario)


def test_input_that_nobody_reads_waits_and_is_dropped_at_the_end(who):
    """Sending is held up by a command that does not read, and let go when that ends."""

    async def scenario(maker):
        box = await maker.take("base")
        process = await box.spawn("sleep", ["1000"], stdin=True)
        sending = asyncio.create_task(process.send_stdin(bytes(1 << 20)))
        assert (await sh(box, "echo meanwhile")).out == "meanwhile\n"
        assert not sending.done()
        await process.signal(9)
        await asyncio.wait_for(sending, 20)

    play(who, scenario)


def test_a_terminal_is_one_and_has_a_size(who):
    """What runs in it sees a terminal, which can change its size, and its keys work."""

    async def scenario(maker):
        box = await maker.take("base")
        process = await box.spawn("/bin/bash", ["--norc", "-i"], pty=(30, 100))
        output = process.subscribe()
        seen = b""

        async def until(text: bytes) -> None:
            nonlocal seen
            while text not in seen:
                seen += (await anext(output)).data

        await process.send_stdin(b"stty size; test -t 1 && echo is a termi''nal\n")
        await until(b"30 100")
        await until(b"is a terminal")
        await process.resize(50, 132)
        await process.send_stdin(b"stty size\n")
        await until(b"50 132")
        await process.send_stdin(
            b'sh -c \'trap "echo cau""ght; exit" INT; echo rea""dy; while :; do sleep 0.1; done\'\n'
        )
        await until(b"ready")
        await process.send_stdin(b"\x03")
        await until(b"caught")
        await process.send_stdin(b"exit 7\n")
        assert [item async for item in output][-1] == Exited(7)

    play(who, scenario)


def test_several_readers_each_get_what_comes_while_they_read(who):
    """The first gets what there was before it; a later one starts where it comes in."""

    async def scenario(maker):
        box = await maker.take("base")
        process = await box.spawn("cat", stdin=True)
        first = process.subscribe()
        await process.send_stdin(b"one\n")
        assert (await anext(first)).data == b"one\n"
        second = process.subscribe()
        await process.send_stdin(b"two\n")
        assert (await anext(first)).data == (await anext(second)).data == b"two\n"
        first.close()
        await process.send_stdin(b"three\n")
        assert (await anext(second)).data == b"three\n"
        await process.close_stdin()
        assert [item async for item in second] == [Exited(0)]
        assert [item async for item in process.subscribe()] == [Exited(0)]

    play(who, scenario)


def test_a_command_that_cannot_run_says_what_is_missing(who):
    """The folder, the program, the right, or what no command can have."""

    async def scenario(maker):
        box = await maker.take("base")
        with pytest.raises(BoxPathMissingError, match="no-such-program"):
            await box.spawn("no-such-program")
        with pytest.raises(BoxPathMissingError, match="no such working folder: /nowhere"):
            await box.spawn("true", cwd="/nowhere")
        with pytest.raises(BoxPermissionError):
            await box.spawn("/etc/passwd")
        with pytest.raises(BoxArgumentError, match="NUL"):
            await box.spawn("echo", ["a\0b"])
        with pytest.raises(BoxArgumentError, match="write it to a file"):
            await box.spawn("/bin/bash", ["-c", "x" * 300_000])
        with pytest.raises(BoxArgumentError, match="'nobody'"):
            await box.spawn("true", user="nobody")

    play(who, scenario)


def test_commands_are_listed_with_what_they_are_until_they_end(who):
    """By number or by tag they can be found again and signalled."""

    async def scenario(maker):
        box = await maker.take("base", envs={"WHO": "box"})
        process = await box.spawn("sleep", ["1000"], envs={"A": "1"}, cwd="/tmp", tag="nap")
        [info] = box.processes()
        assert (info.pid, info.cmd, info.args, info.cwd, info.tag) == (process.pid, "sleep", ("1000",), "/tmp", "nap")
        assert (info.envs["A"], info.envs["WHO"], info.envs["HOME"]) == ("1", "box", "/home/user")
        assert box.process(tag="nap") is box.process(pid=process.pid) is process
        await process.signal(15)
        assert [item async for item in process.subscribe()] == [Exited(-1, 15)]
        with pytest.raises(BoxPathMissingError):
            box.process(tag="nap")
        with pytest.raises(BoxPathMissingError):
            await process.signal(9)

    play(who, scenario)


def test_users_have_a_name_and_a_home(who):
    """The user is `user`; as `root` a command has root's home, and sudo runs what it is given."""

    async def scenario(maker):
        box = await maker.take("base")
        assert (
            await sh(box, "whoami; id -u; pwd; echo $HOME $USER")
        ).out == "user\n1000\n/home/user\n/home/user user\n"
        assert (await sh(box, "pwd; touch x; echo $HOME $USER", user="root")).out == "/root\n/root root\n"
        assert (await sh(box, "sudo -u root A=b bash -c 'echo $A'")).out == "b\n"

    play(who, scenario)


def test_a_signal_reaches_what_the_command_started(who):
    """It is sent to the command's group, so that a shell's child does not go on without it."""

    async def scenario(maker):
        box = await maker.take("base")
        process = await box.spawn("/bin/bash", ["-c", "sleep 1000; echo no"])
        await process.signal(15)
        assert [item async for item in process.subscribe()][-1] == Exited(-1, 15)
        listed = "import os; print([p for p in os.listdir('/proc') if p.isdigit()])"
        for _ in range(100):  # what was signalled ends a moment after the shell did
            running = (await python(box, listed)).out.count("'") // 2
            if running == 2:
                break
            await asyncio.sleep(0.05)
        assert running == 2  # the first process, and the one that counts

    play(who, scenario)


def test_a_paused_sandbox_stands_still_and_goes_on(who):
    """Nothing in it runs meanwhile; what was running goes on afterwards, and a paused one can be killed."""

    async def scenario(maker):
        box = await maker.take("base")
        process = await box.spawn(
            "/bin/bash", ["-c", "i=0; while :; do i=$((i+1)); echo $i > /tmp/count; sleep 0.01; done"]
        )
        await box.pause()
        assert box.paused
        asking = asyncio.create_task(box.stat("/tmp"))
        await asyncio.sleep(0.1)
        assert not asking.done()
        await box.resume()
        await asking
        before = int((await sh(box, "cat /tmp/count")).out or 0)
        while int((await sh(box, "cat /tmp/count")).out or 0) <= before:
            await asyncio.sleep(0.02)
        assert process.exited is None
        await box.pause()
        await box.kill()
        assert process.exited is not None

    play(who, scenario)
