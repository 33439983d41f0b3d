"""The asynchronous SDK, and many sandboxes at a time."""

import asyncio

import e2b
import pytest


@pytest.fixture
def asdk(sandbox_server):
    """The SDK's pool belongs to the loop that first uses it: each test has a client of its own."""
    return e2b.E2B(api_url=sandbox_server.url, sandbox_url=sandbox_server.url, api_key=sandbox_server.api_key)


def test_commands_and_files_work_asynchronously(asdk):
    """One sandbox from the first call to the last."""

    async def play():
        sandbox = await asdk.AsyncSandbox.create("base", timeout=60)
        await sandbox.files.write("f.txt", "written")
        shown = []
        result = await sandbox.commands.run("cat f.txt; echo; exit 0", on_stdout=shown.append)
        assert (result.stdout, "".join(shown)) == ("written\n", "written\n")
        assert await sandbox.kill()
        assert not await sandbox.is_running()

    asyncio.run(play())


def test_a_watched_folder_streams_what_happens(asdk):
    """Until the watch is stopped, or its time is over."""

    async def play():
        sandbox = await asdk.AsyncSandbox.create("base", timeout=60)
        await sandbox.files.make_dir("d")
        seen = asyncio.Queue()
        watch = await sandbox.files.watch_dir("d", on_event=seen.put_nowait)
        await sandbox.files.write("d/f", "x")
        event = await asyncio.wait_for(seen.get(), 10)
        assert (event.type, event.name) == (e2b.FilesystemEventType.CREATE, "f")
        await watch.stop()
        await sandbox.kill()

    asyncio.run(play())


def test_sandboxes_at_the_same_time_do_not_meet(asdk):
    """Sixteen of them: each has its own files, and they are made, used and ended at once."""

    async def play(number):
        sandbox = await asdk.AsyncSandbox.create("base", timeout=60)
        await sandbox.files.write("mine", str(number))
        await asyncio.gather(*(sandbox.commands.run("cat mine >> all") for _ in range(4)))
        found = await sandbox.files.read("all")
        await sandbox.kill()
        return found

    async def all_of_them():
        return await asyncio.gather(*(play(number) for number in range(10, 26)))

    assert asyncio.run(all_of_them()) == [str(number) * 4 for number in range(10, 26)]


def test_a_client_that_leaves_leaves_the_command_running(asdk):
    """A handle can be let go and taken up again; what was said in between is not kept."""

    async def play():
        sandbox = await asdk.AsyncSandbox.create("base", timeout=60)
        command = await sandbox.commands.run("read line; echo got $line", background=True, stdin=True)
        await command.disconnect()
        again = await sandbox.commands.connect(command.pid)
        await sandbox.commands.send_stdin(command.pid, "it\n")
        assert (await again.wait()).stdout == "got it\n"
        await sandbox.kill()

    asyncio.run(play())
