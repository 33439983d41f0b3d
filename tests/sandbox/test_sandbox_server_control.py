"""Sandboxes are made, found, kept, paused and ended: the control plane."""

from datetime import timedelta

import pytest
from e2b import (
    AuthenticationException,
    NotFoundException,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
)
from sandbox_left import until


def ids(pages):
    found = []
    while pages.has_next:
        found += [info.sandbox_id for info in pages.next_items()]
    return found


@pytest.fixture
def group(sdk, request):
    """Three sandboxes that are found by one value; the value has all that a query could trip over."""
    value = f"a&b=c d/é%20+{request.node.name}"
    made = [sdk.Sandbox.create("base", timeout=60, metadata={"group of": value, "n": str(n)}) for n in range(3)]
    yield value, made
    for sandbox in made:
        sandbox.kill()


def test_a_sandbox_says_what_it_is(sdk):
    """Its template, its metadata, its state and when it ends."""
    made = sdk.Sandbox.create("base", timeout=60, metadata={"run": "7"})
    info = made.get_info()
    assert (info.sandbox_id, info.template_id, info.metadata, info.state) == (
        made.sandbox_id,
        "base",
        {"run": "7"},
        SandboxState.RUNNING,
    )
    assert info.end_at - info.started_at == pytest.approx(timedelta(seconds=60), abs=timedelta(seconds=1))
    assert made.kill()
    assert not made.kill()
    with pytest.raises(SandboxNotFoundException):
        made.get_info()


def test_sandboxes_are_found_by_their_metadata(sdk, group):
    """Newest first unless asked otherwise, and every pair must be there with its value."""
    value, made = group
    names = [sandbox.sandbox_id for sandbox in made]
    assert ids(sdk.Sandbox.list(query=SandboxQuery(metadata={"group of": value}))) == names[::-1]
    assert ids(sdk.Sandbox.list(query=SandboxQuery(metadata={"group of": value}), order="asc")) == names
    assert ids(sdk.Sandbox.list(query=SandboxQuery(metadata={"group of": value, "n": "1"}))) == [names[1]]
    assert ids(sdk.Sandbox.list(query=SandboxQuery(metadata={"group of": value, "n": "9"}))) == []
    assert ids(sdk.Sandbox.list(query=SandboxQuery(metadata={"group of": value}, template="other"))) == []


def test_a_list_comes_in_pages(sdk, group):
    """The token of a page leads to the next one, whatever is made or ended in between."""
    value, made = group
    pages = sdk.Sandbox.list(query=SandboxQuery(metadata={"group of": value}), limit=1)
    first = pages.next_items()
    made[2].kill()
    assert [info.sandbox_id for info in first] == [made[2].sandbox_id]
    assert ids(pages) == [made[1].sandbox_id, made[0].sandbox_id]


def test_a_paused_sandbox_is_told_from_a_running_one(sdk, group):
    """It answers nothing until a client connects to it; then its processes go on where they were."""
    value, made = group
    counting = made[0].commands.run("sleep 3600", background=True)
    assert made[0].pause()
    assert not made[0].pause()
    paused = SandboxQuery(metadata={"group of": value}, state=[SandboxState.PAUSED])
    assert ids(sdk.Sandbox.list(query=paused)) == [made[0].sandbox_id]
    assert not made[0].is_running()
    with pytest.raises(SandboxException, match="was not found"):
        made[0].files.exists("f")
    assert sdk.Sandbox.connect(made[0].sandbox_id).commands.list()[0].pid == counting.pid
    assert ids(sdk.Sandbox.list(query=paused)) == []


def test_a_sandbox_ends_when_its_time_is_over(sdk):
    """It is as if it had been killed: the SDK's own exception says so."""
    made = sdk.Sandbox.create("base", timeout=60)
    made.set_timeout(1)
    until(lambda: not made.is_running())
    with pytest.raises(SandboxNotFoundException):
        made.get_info()


def test_more_time_can_be_asked_for_and_less(sdk):
    """Connecting gives more, and never less; setting the time-out does both, and 0 ends it now."""
    made = sdk.Sandbox.create("base", timeout=100)
    ends = made.get_info().end_at
    made.connect(timeout=10)
    assert made.get_info().end_at == ends
    made.connect(timeout=200)
    assert made.get_info().end_at > ends + timedelta(seconds=90)
    made.set_timeout(50)
    assert made.get_info().end_at < ends
    made.set_timeout(0)
    until(lambda: not made.is_running())


def test_a_sandbox_can_be_paused_instead_of_ended(sdk):
    """Where that is asked for it also wakes by itself when it is asked for something."""
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    made = sdk.Sandbox.create("base", timeout=60, lifecycle=lifecycle)
    made.files.write("kept", "here")
    made.set_timeout(0)
    until(lambda: made.get_info().state is SandboxState.PAUSED)
    assert made.files.read("kept") == "here"
    assert made.get_info().state is SandboxState.RUNNING
    made.kill()


def test_a_sandbox_says_what_it_uses(sandbox):
    """One sample, of now; none of a time before it was there."""
    (used,) = sandbox.get_metrics()
    assert 0 < used.mem_used < used.mem_total == 512 * 2**20
    assert used.disk_total > used.disk_used >= 0
    info = sandbox.get_info()
    hour = timedelta(hours=1)
    assert sandbox.get_metrics(start=info.started_at - 2 * hour, end=info.started_at - hour) == []


def test_both_spellings_of_create_make_a_sandbox(wire):
    """Clients from 2.51 on write `/v2/sandboxes`, those before `/sandboxes`."""
    for path in ("/v2/sandboxes", "/sandboxes"):
        answer = wire.api("POST", path, {"templateID": "base", "timeout": 60})
        assert answer.status_code == 201
        sandbox_id = answer.json()["sandboxID"]
        found = [each["sandboxID"] for each in wire.api("GET", path).json()]
        assert sandbox_id in found
        assert wire.api("DELETE", f"/sandboxes/{sandbox_id}").status_code == 204
        assert wire.api("DELETE", f"/sandboxes/{sandbox_id}").status_code == 404


def test_a_create_that_is_sent_again_makes_no_second_sandbox(wire):
    """Under one idempotency key there is one sandbox; another request under it is refused."""
    body = {"templateID": "base", "timeout": 60}
    key = {"Idempotency-Key": "once"}
    first = wire.api("POST", "/v2/sandboxes", body, headers=key).json()
    assert wire.api("POST", "/v2/sandboxes", body, headers=key).json() == first
    other = wire.api("POST", "/v2/sandboxes", {**body, "timeout": 61}, headers=key)
    assert (other.status_code, "idempotency" in other.json()["message"]) == (409, True)
    wire.api("DELETE", f"/sandboxes/{first['sandboxID']}")
    again = wire.api("POST", "/v2/sandboxes", body, headers=key).json()
    assert again["sandboxID"] != first["sandboxID"]
    wire.api("DELETE", f"/sandboxes/{again['sandboxID']}")


def test_an_unknown_template_is_told_with_those_that_there_are(sdk):
    """Nothing is made."""
    with pytest.raises(SandboxException, match=r"no template 'my-env' on this server; it has 'base'"):
        sdk.Sandbox.create("my-env")


@pytest.mark.parametrize("asked", [{"network": {"denyOut": ["8.8.8.8"]}}, {"volumeMounts": [{"name": "v"}]}])
def test_what_a_local_server_does_not_have_is_refused(wire, sandbox, asked):
    """A sandbox without what was asked for would look like one that has it."""
    answer = wire.api("POST", "/v2/sandboxes", {"templateID": "base", **asked})
    assert (answer.status_code, next(iter(asked)) in answer.json()["message"]) == (501, True)
    forks = wire.api("POST", f"/sandboxes/{sandbox.sandbox_id}/fork", {})
    assert (forks.status_code, "snapshot" in forks.json()["message"]) == (501, True)
    assert wire.api("POST", "/sandboxes/none/fork", {}).status_code == 404


@pytest.mark.parametrize(
    ("timeout", "said"),
    [(0, ">= 1 second, got 0"), (-5, ">= 1 second, got -5"), (10**9, "2592000"), ("soon", "'soon'"), (1.5, "1.5")],
)
def test_a_time_out_that_cannot_be_is_refused(wire, timeout, said):
    """0 is never taken for "no limit"."""
    answer = wire.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": timeout})
    assert (answer.status_code, said in answer.json()["message"]) == (400, True), answer.text


def test_a_create_that_is_refused_leaves_no_sandbox(wire):
    """One that was made for a time-out that cannot be would have none, and live for ever."""
    body = {"templateID": "base", "timeout": 31 * 24 * 3600, "metadata": {"refused": "create"}}
    assert wire.api("POST", "/v2/sandboxes", body).status_code == 400
    assert wire.api("GET", "/v2/sandboxes", params={"metadata": "refused=create"}).json() == []


def test_a_paused_sandbox_does_not_go_on_for_a_time_that_cannot_be(sandbox, wire):
    """It would run without an end to its time."""
    sandbox.pause()
    for given in (-1, 10**12):
        assert wire.api("POST", f"/sandboxes/{sandbox.sandbox_id}/connect", {"timeout": given}).status_code == 400
    assert not sandbox.is_running()


def test_a_negative_time_out_changes_nothing(sandbox, wire):
    """The sandbox lives on as long as it would have."""
    ends = sandbox.get_info().end_at
    answer = wire.api("POST", f"/sandboxes/{sandbox.sandbox_id}/timeout", {"timeout": -1})
    assert (answer.status_code, answer.json()["message"]) == (400, "timeout must be >= 0 seconds, got -1")
    assert sandbox.get_info().end_at == ends


def test_another_key_is_refused(sandbox_server, sandbox, wire):
    """Whatever is asked for, and no key at all too; the answer does not say what is there."""
    import e2b  # noqa: PLC0415 - as the fixtures

    other = e2b.E2B(api_url=sandbox_server.url, sandbox_url=sandbox_server.url, api_key="e2b_" + "0" * 40)
    for call in (
        lambda: other.Sandbox.create("base"),
        lambda: other.Sandbox.kill(sandbox.sandbox_id),
        lambda: other.Sandbox.connect(sandbox.sandbox_id),
        lambda: other.Sandbox.list().next_items(),
    ):
        with pytest.raises(AuthenticationException):
            call()
    assert wire.http.get("/v2/sandboxes").status_code == 401
    assert wire.http.get("/no/such/path").status_code == 401
    assert sandbox.is_running()


def test_another_sandboxes_token_is_refused(sandbox, sdk, wire):
    """A client of one sandbox reaches no other."""
    other = sdk.Sandbox.create("base", timeout=60)
    headers = {
        "E2b-Sandbox-Id": sandbox.sandbox_id,
        "X-Access-Token": other.connection_config.sandbox_headers["X-Access-Token"],
    }
    for call in ("process.Process/List", "filesystem.Filesystem/Stat"):
        answer = wire.http.post(f"/{call}", json={"path": "/"}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert wire.http.get("/files", params={"path": "/etc/passwd"}, headers=headers).status_code == 401
    del headers["X-Access-Token"]
    assert wire.http.get("/health", headers=headers).status_code == 401
    other.kill()


def test_a_sandbox_that_is_gone_is_told_as_the_sdk_expects(sdk, wire):
    """502 with the words that the SDK looks for, on every path of the data plane.

    An upload may meet the answer before it is through; the SDK then says of the sandbox what it makes of the 502.
    """
    made = sdk.Sandbox.create("base", timeout=60)
    made.kill()
    for call in (lambda: made.commands.run("true"), lambda: made.files.read("f"), lambda: made.files.write("f", "x")):
        with pytest.raises(SandboxException, match=r"was not found|end of life"):
            call()
    assert wire.http.get("/health", headers={"E2b-Sandbox-Id": made.sandbox_id}).status_code == 502
    with pytest.raises(NotFoundException):
        sdk.Sandbox.connect(made.sandbox_id)
