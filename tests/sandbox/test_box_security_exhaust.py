"""What a sandbox can use up: its own share, while others go on."""

import os

import pytest
from box_worlds import SMALL, WORLDS, content, play, python, sh, works

from tiltyard.errors import BoxFullError, BoxLimitError

pytestmark = pytest.mark.parametrize("who", WORLDS)


def test_a_fork_bomb_fills_its_own_sandbox_only(who):
    """Processes are counted for each sandbox; the one with the bomb can still be asked and killed."""

    async def scenario(maker):
        bombed, other = await maker.take("base"), await maker.take("base")
        bomb = await bombed.spawn("/bin/bash", ["-c", "bomb() { bomb | bomb & }; bomb; sleep 1000"])
        for _ in range(5):
            assert await works(other)
        told = (await bombed.list_dir("/proc")), await bombed.metrics()
        running = [entry.name for entry in told[0] if entry.name.isdigit()]
        assert 1 < len(running) <= SMALL.processes + 9
        await bomb.signal(9)
        await bombed.kill()
        assert await works(other)

    play(who, scenario)


def test_a_command_that_cannot_be_started_says_why(who):
    """With all processes in use, the error is the sandbox's limit, and a file can still be read."""

    async def scenario(maker):
        box = await maker.take("base")
        await python(
            box,
            "import os\ntry:\n while os.fork(): pass\n"
            " os.execlp('sleep', 'sleep', '1000')\nexcept BlockingIOError: pass",
        )
        with pytest.raises(BoxLimitError, match="processes"):  # noqa: PT012 - which of them fails is not known
            for _ in range(20):
                await box.spawn("sleep", ["1000"])
        assert b"Name" in await content(box, "/proc/self/status")

    play(who, scenario)


def test_commands_that_cannot_be_started_hold_no_descriptors(who):
    """However often it is tried: the first process of the sandbox has them all again."""
    if who == "user":
        pytest.skip("only root sees the descriptors of a sandbox's first process")

    async def refused(box):
        try:
            await box.spawn("sleep", ["1000"])
        except BoxLimitError:
            return True
        return False

    async def scenario(maker):
        box = await maker.take("base")
        while not await refused(box):
            pass
        held = len(os.listdir(f"/proc/{box._parts.pid}/fd"))
        assert all([await refused(box) for _ in range(20)])
        assert len(os.listdir(f"/proc/{box._parts.pid}/fd")) == held

    play(who, scenario)


def test_a_memory_bomb_is_killed_and_the_sandbox_lives(who):
    """The process with the most memory goes, not the first process and not the host."""

    async def scenario(maker):
        bombed, other = await maker.take("base"), await maker.take("base")
        ran = await python(bombed, "hold = []\nwhile True: hold.append(bytearray(4 << 20))")
        assert ran.signal == 9 or "MemoryError" in ran.err
        assert await works(bombed)
        assert await works(other)

    play(who, scenario)


def test_many_processes_together_have_no_more_memory_than_one(who):
    """The limit is the sandbox's, not that of each process."""

    async def scenario(maker):
        box, other = await maker.take("base"), await maker.take("base")
        script = "\n".join(
            [
                "hold() { python3 -I -S -c 'x = bytearray(60 << 20); import time; time.sleep(1000)'; }",
                "for i in 1 2 3 4 5; do hold & done",
                "wait -n",
                "echo $?",
            ]
        )
        ran = await sh(box, script)
        assert ran.out == "137\n"
        assert await works(other)
        await box.kill()

    play(who, scenario)


def test_a_full_disk_says_so_and_leaves_the_sandbox_alive(who):
    """The disk, the shared memory and the folders of devices each have an end."""

    async def scenario(maker):
        box, other = await maker.take("base"), await maker.take("base")
        ran = await sh(
            box,
            "for at in ~ /tmp /run /var/log /dev/shm; do head -c 200M /dev/zero > $at/big; stat -c %s $at/big; done",
        )
        assert ran.err.count("No space left on device") == 5
        assert sum(map(int, ran.out.split())) <= 2 * (SMALL.disk_mib << 20)
        with pytest.raises(BoxFullError):
            await box.write_file("more", b"x" * 100_000)
        assert (await sh(box, "echo still here")).out == "still here\n"
        metrics = await box.metrics()
        assert metrics.disk_used == metrics.disk_total == SMALL.disk_mib << 20
        await box.remove("/run/big")
        await box.remove("/tmp/big")
        await box.remove("big")
        assert await works(box)
        assert await works(other)

    play(who, scenario)


def test_open_files_have_an_end(who):
    """One process has as many open files as the limit says."""

    async def scenario(maker):
        box = await maker.take("base")
        ran = await python(
            box, "hold = []\ntry:\n while True: hold.append(open('/dev/null'))\nexcept OSError as e: print(e.errno)"
        )
        assert ran.out == "24\n"

    play(who, scenario)


@pytest.mark.parametrize(
    ("count", "digits", "said"), [(60_000, 1, "more than 50000 entries"), (32_000, 200, "more than 6291456 characters")]
)
def test_more_entries_than_can_be_told_are_refused(who, count, digits, said):
    """A folder with very many files, or very long names, is an error, not a flood."""

    async def scenario(maker):
        box = await maker.take("base")
        ran = await python(
            box,
            "import os\nos.mkdir('/tmp/d')\nopen('/tmp/d/0', 'w').close()\n"
            f"for i in range(1, {count}): os.link('/tmp/d/0', f'/tmp/d/{{i:0{digits}}}')",
        )
        assert ran.code == 0, ran
        with pytest.raises(ValueError, match=said):
            await box.list_dir("/tmp", 2)
        await box.remove("/tmp/d")
        assert await box.list_dir("/tmp") == []

    play(who, scenario)


def test_cpu_is_shared_by_the_limit(who):
    """Where the machine can limit CPU, a busy loop gets its share and no more."""

    async def scenario(maker):
        if "cpu" not in maker.isolation.cgroups.controllers:
            assert "CPU is NOT limited" in maker.isolation.describe()
            return
        box = await maker.take("base", limits=type(SMALL)(memory_mib=64, disk_mib=8, cpus=0.2))
        ran = await python(
            box,
            "import time\nstart, used = time.monotonic(), time.process_time()\n"
            "while time.monotonic() - start < 1.0: pass\nprint(time.process_time() - used)",
        )
        assert float(ran.out) < 0.5

    play(who, scenario)
