"""Files of a sandbox, and folders under watch."""

import asyncio

import pytest
from box_worlds import WORLDS, content, play, sh

from tiltyard.errors import (
    BoxArgumentError,
    BoxPathExistsError,
    BoxPathKindError,
    BoxPathMissingError,
    BoxPermissionError,
)

pytestmark = pytest.mark.parametrize("who", WORLDS)


def test_a_file_is_written_with_its_folders_and_read_back(who):
    """Bytes come back as they went, small or of many windows; writing again leaves nothing of before."""

    async def scenario(maker):
        box = await maker.take("base")
        entry = await box.write_file("a/b/c.bin", b"\0\xff" * 10)
        assert (entry.path, entry.size, entry.mode, entry.owner) == ("/home/user/a/b/c.bin", 20, 0o644, "user")
        assert await content(box, "~/a/b/c.bin") == b"\0\xff" * 10
        large = bytes(range(256)) * 12_000

        async def pieces():
            for at in range(0, len(large), 100_000):
                yield large[at : at + 100_000]

        assert (await box.write_file("/home/user/large", pieces())).size == len(large)
        assert await content(box, "large") == large
        await box.write_file("large", b"short")
        assert await content(box, "large") == b"short"
        await box.write_file("empty", b"")
        assert await content(box, "empty") == b""

    play(who, scenario)


def test_files_of_the_kernel_that_say_they_are_empty_are_read_whole(who):
    """A size of 0 in `/proc` is not the size."""

    async def scenario(maker):
        box = await maker.take("base")
        assert b"Name:" in await content(box, "/proc/self/status")

    play(who, scenario)


def test_a_reading_that_is_closed_early_costs_nothing(who):
    """The rest is not sent, and the sandbox goes on."""

    async def scenario(maker):
        box = await maker.take("base")
        await box.write_file("large", bytes(5_000_000))
        for _ in range(20):
            reading = await box.read_file("large")
            await anext(reading)
            reading.close()
        assert len(await content(box, "large")) == 5_000_000

    play(who, scenario)


def test_what_is_wrong_with_a_path_is_told_by_kind(who):
    """Missing, a folder, not a folder, no right, in the way, or no path at all."""

    async def scenario(maker):
        box = await maker.take("base")
        await box.write_file("file", b"x")
        with pytest.raises(BoxPathMissingError, match="/home/user/none"):
            await content(box, "none")
        with pytest.raises(BoxPathKindError, match="directory"):
            await content(box, "/tmp")
        with pytest.raises(BoxPathKindError):
            await box.write_file("file/below", b"x")
        with pytest.raises(BoxPathKindError):
            await box.list_dir("file")
        with pytest.raises(BoxPermissionError):
            await box.write_file("/usr/bin/x", b"x")
        with pytest.raises(BoxPathExistsError):
            await box.make_dir("file")
        with pytest.raises(BoxArgumentError, match="NUL"):
            await box.stat("a\0b")
        with pytest.raises(BoxArgumentError):
            await box.stat("x" * 300)
        with pytest.raises(BoxArgumentError):
            await box.list_dir("/tmp", 0)
        with pytest.raises(BoxPathMissingError):
            await box.move("none", "other")

    play(who, scenario)


def test_a_folder_is_listed_to_a_depth_with_links_told_and_not_followed(who):
    """Each folder comes before what is in it; a link says what it points to."""

    async def scenario(maker):
        box = await maker.take("base")
        await sh(box, "mkdir -p top/one/deep top/two; touch top/one/f; ln -s one top/to-one; ln -s nowhere top/broken")
        names = [entry.path.removeprefix("/home/user/top/") for entry in await box.list_dir("top", 2)]
        assert names == ["broken", "one", "one/deep", "one/f", "to-one", "two"]
        entries = {entry.name: entry for entry in await box.list_dir("top")}
        assert list(entries) == ["broken", "one", "to-one", "two"]
        assert (entries["to-one"].kind, entries["to-one"].symlink_target) == ("directory", "/home/user/top/one")
        assert (entries["broken"].kind, entries["one"].kind) == ("symlink", "directory")
        assert entries["one"].permissions == "drwxr-xr-x"
        names = "non-utf8-\udcff"
        await box.write_file(f"odd/{names}", b"x")
        assert [entry.name for entry in await box.list_dir("odd")] == [names]

    play(who, scenario)


def test_files_are_moved_and_removed(who):
    """Moving makes the folders above the new place; removing takes all below, and nothing is no error."""

    async def scenario(maker):
        box = await maker.take("base")
        await box.write_file("a/b", b"x")
        assert (await box.move("a", "new/place/a")).kind == "directory"
        assert await content(box, "new/place/a/b") == b"x"
        await sh(box, "ln -s /home/user/new link; ln -s /usr/bin new/bin")
        await box.remove("link")
        await box.remove("new")
        await box.remove("new")
        assert await box.list_dir(".") == []
        assert (await sh(box, "test -x /usr/bin/env && echo there")).out == "there\n"

    play(who, scenario)


def test_metadata_goes_with_a_file_until_it_is_written_again(who):
    """What was given at writing is told at each look."""

    async def scenario(maker):
        box = await maker.take("base")
        await box.write_file("f", b"x", metadata={"author": "me", "ümlaut": "ß"})
        assert (await box.stat("f")).metadata == {"author": "me", "ümlaut": "ß"}
        await box.write_file("f", b"y")
        assert (await box.stat("f")).metadata == {}

    play(who, scenario)


def test_a_watch_tells_of_a_call_before_the_call_is_answered(who):
    """After a write has returned, what it did is there to be fetched."""

    async def scenario(maker):
        box = await maker.take("base")
        await box.make_dir("w")
        watch = await box.watch("w")
        await box.write_file("w/f", b"x")
        assert [(event.kind, event.name) for event in await watch.drain()] == [
            ("create", "f"),
            ("chmod", "f"),
            ("write", "f"),
        ]
        await box.move("w/f", "w/g")
        await box.remove("w/g")
        assert [(event.kind, event.name) for event in await watch.drain()] == [
            ("rename", "f"), ("create", "g"), ("remove", "g")
        ]  # fmt: skip
        await box.make_dir("w/sub")
        await watch.drain()
        await box.write_file("w/sub/deep", b"x")
        assert await watch.drain() == []
        await watch.close()
        await box.write_file("w/after", b"x")
        assert await watch.drain() == []

    play(who, scenario)


def test_a_watch_of_everything_below_includes_folders_made_later(who):
    """Also what was put into a new folder before anybody could look."""

    async def scenario(maker):
        box = await maker.take("base")
        await box.make_dir("w/old")
        watch = await box.watch("w", recursive=True)
        await sh(box, "mkdir -p w/new/deep; echo x > w/new/deep/f; echo y > w/old/g")
        seen = set()
        async with asyncio.timeout(20):
            async for event in watch:
                seen.add((event.kind, event.name))
                if {("create", "new"), ("create", "new/deep"), ("create", "new/deep/f"), ("create", "old/g")} <= seen:
                    break
        await watch.close()
        for path, error in (("none", BoxPathMissingError), ("/etc/passwd", BoxPathKindError)):
            with pytest.raises(error):
                await box.watch(path)

    play(who, scenario)


def test_many_file_calls_at_once_are_each_answered(who):
    """Calls share one connection and do not wait for one another's ends."""

    async def scenario(maker):
        box = await maker.take("base")
        await asyncio.gather(*(box.write_file(f"d/{i}", f"{i}".encode() * 1000) for i in range(100)))
        read = await asyncio.gather(*(content(box, f"d/{i}") for i in range(100)))
        assert read == [f"{i}".encode() * 1000 for i in range(100)]

    play(who, scenario)
