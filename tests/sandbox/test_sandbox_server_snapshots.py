"""Snapshots: the files of a sandbox at one moment, from which others begin."""

import asyncio

import e2b
import pytest
from box_worlds import WORLDS, play

from tiltyard import AgentEnv, LocalSandboxServer
from tiltyard.sandbox import BoxLimits, Template, snapshots
from tiltyard.sandbox.live import Sandboxes
from tiltyard.sandbox.live_sandbox import Asked
from tiltyard.sandbox.refusal import RefusedError


@pytest.fixture
def kept(sandbox, sdk):
    """A sandbox with a prepared state, and a snapshot of it."""
    sandbox.files.write("/home/user/work/state", "as it was")
    sandbox.commands.run(
        "printf '#!/bin/sh\\necho ran' > run; chmod 755 run; ln -s work link; echo t > /tmp/t; sleep 60 &"
    )
    snapshot = sandbox.create_snapshot()
    yield snapshot
    sdk.Sandbox.delete_snapshot(snapshot.snapshot_id)


def test_a_sandbox_begins_as_another_was_left(sandbox, kept, sdk):
    """Contents, modes, links and temporary files; what ran there is no part of it, and goes on there."""
    made = sdk.Sandbox.create(kept.snapshot_id, timeout=60)
    assert (
        made.commands.run("cat link/state; ./run; cat /tmp/t; pgrep -c sleep || true").stdout == "as it wasran\nt\n0\n"
    )
    assert sandbox.commands.run("pgrep -c sleep").stdout == "1\n"
    made.kill()


def test_sandboxes_of_one_snapshot_are_apart(sandbox, kept, sdk):
    """From each other, and from the one that it was taken of, which may be gone."""
    sandbox.files.write("work/state", "changed later")
    one, other = (sdk.Sandbox.create(kept.snapshot_id, timeout=60) for _ in range(2))
    one.files.write("work/state", "changed in one")
    assert (other.files.read("work/state"), sandbox.files.read("work/state")) == ("as it was", "changed later")
    one.kill()
    other.kill()


def test_a_snapshot_is_found_by_its_id_its_name_and_its_sandbox(sandbox, sdk):
    """The newest of a name is the one that is meant."""
    first, second = sandbox.create_snapshot(name="ready"), sandbox.create_snapshot(name="ready")
    assert second.names == ["ready"]
    for options in ({"name": "ready"}, {"sandbox_id": sandbox.sandbox_id}, {}):
        listed = [each.snapshot_id for each in sdk.Sandbox.list_snapshots(**options).next_items()]
        assert {first.snapshot_id, second.snapshot_id} <= set(listed)
    assert sdk.Sandbox.list_snapshots(name="other").next_items() == []
    assert [sdk.Sandbox.delete_snapshot(asked) for asked in ("ready", first.snapshot_id, "ready")] == [
        True,
        True,
        False,
    ]


def test_what_a_snapshot_cannot_be_is_refused(sandbox, wire):
    """With memory, under the name of a template, of a sandbox that is paused or gone."""
    place = f"/sandboxes/{sandbox.sandbox_id}/snapshots"
    assert wire.api("POST", place, {"memory": True}).status_code == 501
    assert wire.api("POST", place, {"name": "base"}).status_code == 409
    assert wire.api("POST", place, {"name": "a b"}).status_code == 400
    assert wire.api("POST", "/sandboxes/none/snapshots", {}).status_code == 404
    sandbox.pause()
    assert wire.api("POST", place, {}).status_code == 409
    assert wire.api("DELETE", "/templates/base").status_code == 404
    assert wire.api("GET", "/snapshots", key="another").status_code == 401


def test_a_snapshot_takes_the_place_of_the_set_up_and_keeps_the_limits():
    """What was removed since the set-up stays removed; and nothing of a snapshot outlives its server."""
    ready = Template("ready", setup=("echo once > /home/user/set-up",), limits=BoxLimits(256, disk_mib=64))
    with LocalSandboxServer([ready], warm=1) as server:
        sdk = e2b.E2B(api_url=server.url, sandbox_url=server.url, api_key=server.api_key).Sandbox
        sandbox = sdk.create("ready", timeout=60)
        sandbox.commands.run("rm set-up; echo more > more")
        made = sdk.create(sandbox.create_snapshot(name="then").snapshot_id, timeout=60)
        assert made.commands.run("ls").stdout == "more\n"
        assert made.get_info().memory_mb == 256
        with AgentEnv("then", server.url, server.api_key) as env:
            env.reset()
            assert env.run_command({"command": "cat more"}) == "more\n"


def test_so_many_snapshots_are_kept_and_no_more(sandbox, wire):
    """They take up this machine's disk."""
    place = f"/sandboxes/{sandbox.sandbox_id}/snapshots"
    answers = [wire.api("POST", place, {}) for _ in range(snapshots.MAX_SNAPSHOTS + 1)]
    assert [answer.status_code for answer in answers[-2:]] == [201, 429]
    for told in wire.api("GET", "/snapshots").json():
        assert wire.api("DELETE", f"/templates/{told['snapshotID']}").status_code == 204


def test_a_snapshot_that_is_deleted_while_a_sandbox_is_made_of_it_is_not_there():
    """404, as for any that was deleted before, and no sandbox is left."""

    async def scenario(maker):
        sandboxes = Sandboxes(maker, maker.templates, 4)
        snapshot = await sandboxes.take_snapshot(await sandboxes.create(Asked("base", 60)), "then")
        making = asyncio.ensure_future(sandboxes.create(Asked("then", 60)))
        await asyncio.sleep(0)
        sandboxes.snapshots.delete(snapshot.id)
        with pytest.raises(RefusedError, match="no template 'then'") as refused:
            await making
        assert (refused.value.status, len(maker.live)) == (404, 1)
        await sandboxes.close()

    play(WORLDS[0], scenario)
