"""Sandboxes made, kept ready, and made of different things."""

import asyncio
import os
import re
import resource
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from box_worlds import BASE, SMALL, WORLDS, content, play, sh

from tiltyard.errors import BoxGoneError, ConfigurationError
from tiltyard.sandbox.box_maker import BoxMaker
from tiltyard.sandbox.box_model import BoxLimits, Template
from tiltyard.sandbox.isolation import probe


def made_of(**fields) -> Template:
    return Template("base", limits=SMALL, **fields)


@pytest.mark.parametrize("who", WORLDS)
def test_a_sandbox_that_is_ready_is_taken_and_replaced(who):
    """Warm sandboxes are as fresh as others, and there are as many again soon after."""

    async def scenario(maker):
        assert maker.live == []
        boxes = [await maker.take("base", envs={"N": str(n)}) for n in range(4)]
        assert len({box.id for box in boxes}) == len(maker.live) == 4
        assert [(await sh(box, "echo $N; ls -A ~")).out for box in boxes] == ["0\n", "1\n", "2\n", "3\n"]
        await boxes[0].kill()
        assert len(maker.live) == 3

    play(who, scenario, warm=2)


@pytest.mark.parametrize("who", WORLDS)
def test_many_are_made_at_once(who):
    """Sandboxes do not wait for one another's start."""

    async def scenario(maker):
        boxes = await asyncio.gather(*(maker.take("base") for _ in range(12)))
        ran = await asyncio.gather(*(sh(box, f"echo {n}") for n, box in enumerate(boxes)))
        assert [result.out for result in ran] == [f"{n}\n" for n in range(12)]
        await asyncio.gather(*(box.kill() for box in boxes))
        assert maker.live == []

    play(who, scenario)


@pytest.mark.parametrize("who", WORLDS)
def test_set_up_commands_run_once_and_what_they_left_is_in_every_sandbox(who):
    """Files, links, modes and folders outside home are kept; changes in one sandbox are not those of another."""

    setup = (
        "mkdir -p /work/d && date +%N > /work/d/made && echo '#!/bin/sh' > run.sh && chmod 700 run.sh",
        "ln -s /work ~/link; touch /opt/x",
    )

    async def scenario(maker):
        one, other = await maker.take("base"), await maker.take("base")
        assert await content(one, "link/d/made") == await content(other, "/work/d/made")
        assert (await one.stat("run.sh")).permissions == "-rwx------"
        assert (await one.stat("run.sh")).owner == "user"
        await one.write_file("/work/d/made", b"changed")
        assert await content(other, "/work/d/made") != b"changed"
        assert (await other.stat("/opt/x")).kind == "file"

    play(who, scenario, made_of(setup=setup))


@pytest.mark.parametrize("who", WORLDS)
def test_a_set_up_that_fails_says_what_failed(who):
    """The command, its code and the end of its output are in the error, and no sandbox is left of it."""

    async def scenario(maker):
        with pytest.raises(ConfigurationError, match=r"'echo oh no >&2; exit 3'.*exit code 3[\s\S]*oh no"):
            await maker.take("base")
        assert maker.live == []

    play(who, scenario, made_of(setup=("true", "echo oh no >&2; exit 3")))


def test_a_set_up_that_failed_is_tried_again_when_it_is_asked_for():
    """A network that was away for a moment costs no restart of the server."""
    source = Path(tempfile.mkdtemp(prefix="tiltyard-source-"))
    source.chmod(0o755)

    async def scenario(maker):
        bare = replace(maker.isolation, kind="none", bwrap=None, seccomp=False, why_not="the set-up needs this machine")
        ready = replace(BASE, name="ready", setup=(f"cat {source}/it > made",))
        again = BoxMaker(bare, Path(maker._folder, "again"), [ready])
        await again.start()
        with pytest.raises(ConfigurationError, match=r"/it: No such file"):
            await again.take("ready")
        (source / "it").write_text("now")
        assert (await sh(await again.take("ready"), "cat made")).out == "now"
        await again.close()
        Path(maker._folder, "again").rmdir()

    play(WORLDS[0], scenario)
    shutil.rmtree(source)


@pytest.mark.parametrize("who", WORLDS)
def test_a_folder_can_be_the_root(who):
    """What is in it is there, read-only; home, `/tmp` and the top can be written; it needs no Python of its own."""
    root = Path(tempfile.mkdtemp(prefix="tiltyard-root-"))
    root.chmod(0o755)
    for name in ("usr/bin", "lib64", "data"):
        (root / name).mkdir(parents=True)
    (root / "data" / "task").write_text("solve it")
    (root / "bin").symlink_to("usr/bin")
    needed = subprocess.run(["ldd", "/bin/bash"], capture_output=True, text=True, check=True).stdout
    for library in (word for word in needed.split() if word.startswith("/")):
        shutil.copy(library, root / "lib64")
    for program in ("bash", "cat", "touch"):
        shutil.copy(f"/bin/{program}", root / "usr" / "bin")

    async def scenario(maker):
        box = await maker.take("base", envs={"LD_LIBRARY_PATH": "/lib64"})
        assert (await sh(box, "cat /data/task")).out == "solve it"
        assert "Read-only" in (await sh(box, "echo x > /data/x")).err
        assert (await sh(box, "touch ~/x /tmp/x /x && echo $PWD")).out == "/home/user\n"
        assert (await sh(box, "python3")).code == 127
        assert (await box.list_dir("/usr"))[0].name == "bin"

    try:
        play(who, scenario, made_of(root=root))
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("who", WORLDS)
def test_limits_of_ones_own_make_a_sandbox_of_ones_own(who):
    """Asked for with other limits, a sandbox has those."""

    async def scenario(maker):
        box = await maker.take("base", limits=BoxLimits(memory_mib=64, disk_mib=4, processes=10))
        assert (await box.metrics()).disk_total == 4 << 20
        assert (await sh(box, "ulimit -u")).out == "10\n"
        assert (await box.metrics()).mem_total == 64 << 20

    play(who, scenario, warm=1)


@pytest.mark.parametrize("who", WORLDS)
def test_what_is_not_there_or_over_is_said(who):
    """An unknown template is answered with those there are; a closed maker makes nothing."""

    async def scenario(maker):
        with pytest.raises(ConfigurationError, match="no template 'other'; there are: 'base'"):
            await maker.take("other")
        await maker.close()
        await maker.close()
        with pytest.raises(BoxGoneError, match="closed"):
            await maker.take("base")

    play(who, scenario)


@pytest.mark.parametrize("who", WORLDS)
def test_a_take_that_is_not_waited_for_leaves_nothing(who):
    """Cancelled at any moment, the sandbox that was on its way is killed."""

    async def scenario(maker):
        for after_s in (0.0, 0.01, 0.03, 0.06):
            taking = asyncio.create_task(maker.take("base"))
            await asyncio.sleep(after_s)
            taking.cancel()
            await asyncio.wait([taking])
            if not taking.cancelled():
                await taking.result().kill()
        assert maker.live == []

    play(who, scenario)


@pytest.mark.parametrize("who", WORLDS)
def test_without_isolation_a_sandbox_is_processes_and_a_folder(who):
    """Asked for in so many words, it works where namespaces do not: a home of its own, and nothing left of it."""

    async def scenario(maker):
        bare = replace(maker.isolation, kind="none", bwrap=None, seccomp=False, why_not="the test wants it so")
        assert "NOT ISOLATED" in bare.describe()
        folder = Path(maker._folder, "bare")
        unsafe = BoxMaker(bare, folder, [BASE])
        await unsafe.start()
        box = await unsafe.take("base")
        await box.write_file("/home/user/a", b"x")
        assert (await sh(box, "cat a; pwd")).out == f"x{box.homes.outside}\n"
        assert (await sh(box, "setsid sleep 1000 >/dev/null 2>&1 & exit 3")).code == 3
        assert (await box.metrics()).mem_used > 0
        await box.kill()
        assert not Path(box.homes.outside).exists()
        other = await unsafe.take("base")
        assert (await sh(other, "ls -A")).out == ""
        await unsafe.close()
        folder.rmdir()

    play(who, scenario)


def test_without_isolation_files_are_kept_of_the_folder_and_not_of_the_machine():
    """A set-up and a snapshot have what is in the sandbox's home, and nothing of the disk around it."""

    async def scenario(maker):
        bare = replace(maker.isolation, kind="none", bwrap=None, seccomp=False, why_not="the test wants it so")
        folder = Path(maker._folder, "bare")
        ready = replace(BASE, name="ready", setup=("echo made > made",))
        unsafe = BoxMaker(bare, folder, [BASE, ready])
        await unsafe.start()
        box = await unsafe.take("ready")
        await box.write_file("work/more", b"more")
        kept = await unsafe.keep_files(box)
        other = await unsafe.take("base", files=kept)
        assert (await sh(other, "cat made work/more; ls -A")).out == "made\nmoremade\nwork\n"
        await unsafe.close()
        folder.rmdir()

    play(WORLDS[0], scenario)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"memory_mib": 16}, "memory_mib of a sandbox must be >= 32, got 16"),
        ({"disk_mib": 300}, "at most half of memory_mib.*disk_mib=300 and memory_mib=512"),
        ({"cpus": 0}, "cpus of a sandbox must be > 0, got 0"),
        ({"processes": 0}, "processes of a sandbox must be >= 1, got 0"),
        ({"memory_mib": "512"}, "memory_mib of a sandbox must be a whole number, got '512'"),
        ({"memory_mib": 512.5}, "memory_mib of a sandbox must be a whole number, got 512.5"),
        ({"cpus": float("inf")}, "cpus of a sandbox must be <= 4096, got inf"),
        ({"cpus": True}, "cpus of a sandbox must be a number, got True"),
        ({"open_files": 10**9}, "open_files of a sandbox must be <= 1048576, got 1000000000"),
    ],
)
def test_limits_that_cannot_work_are_refused(fields, message):
    """Each says what was wrong and what was given."""
    with pytest.raises(ConfigurationError, match=message):
        BoxLimits(**fields)


def test_templates_that_cannot_work_are_refused(tmp_path):
    """A name that no URL can have, a root that is no folder, a name twice."""
    with pytest.raises(ConfigurationError, match="got 'a b'"):
        Template("a b")
    with pytest.raises(ConfigurationError, match="must be a folder"):
        Template("a", root=tmp_path / "none")
    with pytest.raises(ConfigurationError, match="same name"):
        BoxMaker(probe(), tmp_path, [Template("a"), Template("a")])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": 5}, "a template's name has letters, digits and any of -_.:/ in it; got 5"),
        ({"root": 5}, "root of template 'a' must be a folder, got '5'"),
        ({"setup": 5}, "setup of template 'a' must be a list of shell commands, got 5"),
        ({"setup": ["true", " "]}, "setup of template 'a' must be shell commands, one is ' '"),
        ({"envs": [("A", "1")]}, "envs of template 'a' must map names to texts, got a list"),
        ({"envs": {"A=B": "1"}}, "'A=B' cannot name a variable (in envs of template 'a')"),
        ({"envs": {"A": 1}}, "'A' in envs of template 'a' must be a text without a NUL"),
        ({"limits": {"memory_mib": 512}}, "limits of template 'a' must be BoxLimits(…), got {'memory_mib': 512}"),
        ({"network": "no"}, "network of template 'a' must be true or false, got 'no'"),
    ],
)
def test_a_template_of_something_else_is_refused_when_it_is_made(fields, message):
    """Not by a sandbox that does not start, or a command that fails."""
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        Template(**{"name": "a", **fields})


def test_a_root_is_found_from_wherever_sandboxes_are_started(tmp_path, monkeypatch):
    """One that is relative is so to where this process is when it is named; text will do."""
    (tmp_path / "system").mkdir()
    monkeypatch.chdir(tmp_path)
    assert Template("a", root="system").root == tmp_path / "system"
    assert Template("a", setup="echo one").setup == ("echo one",)


@pytest.mark.parametrize("who", WORLDS)
def test_a_limit_above_this_machines_own_is_this_machines_own(who):
    """Commands run all the same."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    async def scenario(maker):
        box = await maker.take("base", limits=replace(SMALL, open_files=min(1 << 20, hard + 1), processes=1 << 21))
        assert (await sh(box, "ulimit -n; ulimit -u | grep -c .")).out == f"{hard}\n1\n"

    play(who, scenario)


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user needs no folder that others can get to")
def test_a_folder_that_sandboxes_cannot_get_to_is_refused(tmp_path):
    """Run as root, each sandbox is a user of its own, and a folder of root's alone is closed to it."""

    async def scenario():
        with pytest.raises(ConfigurationError, match=r"o\+x"):
            await BoxMaker(probe(), tmp_path / "boxes", [BASE]).start()

    tmp_path.chmod(0o700)
    asyncio.run(scenario())
