"""Requests that cannot be done are answered with what was wrong; the server and the sandbox go on."""

import asyncio
import base64
import gzip
import json
import struct

import httpx
import pytest
from e2b import InvalidArgumentException, SandboxException

from tiltyard.sandbox.app import sandbox_app
from tiltyard.sandbox.box_model import Template
from tiltyard.sandbox.live import Sandboxes


def start(wire, made, body, **headers):
    """The messages of a command's stream, as they are on the wire."""
    data = json.dumps(body).encode()
    headers = {**wire.access(made), "Content-Type": "application/connect+json", **headers}
    content = struct.pack(">BI", 0, len(data)) + data
    answer = wire.http.post("/process.Process/Start", content=content, headers=headers)
    if answer.status_code != 200:
        return answer.json()
    told, left = [], answer.content
    while left:
        size = int.from_bytes(left[1:5])
        told.append((left[0], json.loads(left[5 : 5 + size])))
        left = left[5 + size :]
    return told


@pytest.fixture(scope="module")
def made(wire):
    made = wire.create()
    yield made
    wire.api("DELETE", f"/sandboxes/{made['sandboxID']}")


def test_a_stream_has_a_beginning_data_and_an_end(wire, made):
    """As the protocol has it: the process number first, bytes as base64, the last message marked."""
    told = start(wire, made, {"process": {"cmd": "/bin/bash", "args": ["-c", "printf hi; exit 4"]}})
    pid = told[0][1]["event"]["start"]["pid"]
    assert told == [
        (0, {"event": {"start": {"pid": pid}}}),
        (0, {"event": {"data": {"stdout": base64.b64encode(b"hi").decode()}}}),
        (0, {"event": {"end": {"exitCode": 4, "exited": True, "status": "exit status 4", "error": "exit status 4"}}}),
        (2, {}),
    ]


def test_a_time_out_ends_the_stream_with_an_error(wire, made):
    """What was said before it has been sent; a time-out of 0 or less is refused, never taken for none."""
    body = {"process": {"cmd": "/bin/bash", "args": ["-c", "echo before; sleep 60"]}}
    told = start(wire, made, body, **{"Connect-Timeout-Ms": "300"})
    assert told[1][1] == {"event": {"data": {"stdout": base64.b64encode(b"before\n").decode()}}}
    assert (told[-1][0], told[-1][1]["error"]["code"]) == (2, "deadline_exceeded")
    for given in ("0", "-5", "soon"):
        refused = start(wire, made, body, **{"Connect-Timeout-Ms": given})
        assert refused["code"] == "invalid_argument"
        assert repr(given) in refused["message"]


def test_a_quiet_command_is_kept_alive_as_often_as_asked(wire, made):
    """A proxy that cuts idle connections sees that this one is not."""
    told = start(wire, made, {"process": {"cmd": "sleep", "args": ["1.2"]}}, **{"Keepalive-Ping-Interval": "1"})
    assert [message for _, message in told][1] == {"event": {"keepalive": {}}}


def test_a_command_that_is_too_long_is_told_the_way_around(sandbox):
    """Linux takes 128 KiB in one argument; in a file it works."""
    command = "echo " + "x" * 300_000
    with pytest.raises(InvalidArgumentException, match="write it to a file"):
        sandbox.commands.run(command)
    sandbox.files.write("command.sh", command)
    assert len(sandbox.commands.run("bash command.sh").stdout) == 300_001


@pytest.mark.parametrize(
    ("call", "body", "said"),
    [
        ("filesystem.Filesystem/Stat", {"path": "a\0b"}, "NUL"),
        ("filesystem.Filesystem/Stat", {"path": "a\ud800b"}, "surrogate"),
        ("filesystem.Filesystem/Stat", {"path": ""}, "'path' is empty"),
        ("filesystem.Filesystem/Stat", {}, "'path' is missing"),
        ("filesystem.Filesystem/Stat", {"path": 7}, "got 7"),
        ("filesystem.Filesystem/ListDir", {"path": "/", "depth": -1}, "got -1"),
        ("filesystem.Filesystem/Move", {"source": "a", "destination": "\0"}, "NUL"),
        ("process.Process/SendSignal", {"process": {"pid": 1}, "signal": "SIGNAL_HUP"}, "'SIGNAL_HUP'"),
        ("process.Process/SendInput", {"process": {"pid": "one"}}, "'one'"),
    ],
)
def test_a_value_that_cannot_be_is_named(wire, made, call, body, said):
    """The answer is an error of the protocol, with the field and what was given."""
    answer = (
        wire.call(made, call, None, **{"Content-Type": "application/json"})
        if body is None
        else wire.http.post(
            f"/{call}",
            content=json.dumps(body),
            headers={**wire.access(made), "Content-Type": "application/json"},
        )
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    assert said in answer.json()["message"]


@pytest.mark.parametrize("content", [b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(wire, made, content):
    """Broken, of another kind, no text, or nested without end."""
    headers = {**wire.access(made), "Content-Type": "application/json"}
    answer = wire.http.post("/filesystem.Filesystem/Stat", content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    answer = wire.http.post("/v2/sandboxes", content=content, headers={"X-API-KEY": wire.key})
    assert (answer.status_code, answer.json()["code"]) == (400, 400)


def test_a_request_that_is_too_large_is_refused_before_it_is_read(wire, made):
    """A file of any size is streamed; a message is held in memory and has a limit."""
    headers = {**wire.access(made), "Content-Type": "application/json"}
    answer = wire.http.post("/process.Process/SendInput", content=b" " * (17 * 2**20), headers=headers)
    assert answer.status_code == 413


def test_paths_with_a_nul_are_refused_wherever_they_come_from(wire, made):
    """In a query, in a form, and in a command's folder and arguments."""
    access = wire.access(made)
    assert wire.http.get("/files", params={"path": "a\0b"}, headers=access).status_code == 400
    form = {"file": ("a%00b", b"x")}
    assert wire.http.post("/files", params={"path": "a\0b"}, files=form, headers=access).status_code == 400
    for config in (
        {"cmd": "echo", "args": ["a\0b"]},
        {"cmd": "echo", "cwd": "a\0b"},
        {"cmd": "echo", "envs": {"A": "\0"}},
    ):
        assert start(wire, made, {"process": config})["code"] == "invalid_argument"


def test_variables_need_names(wire, made):
    """One without, or with an `=` in it, would be another one in the command."""
    for envs in ({"": "x"}, {"A=B": "x"}):
        assert "environment variable" in start(wire, made, {"process": {"cmd": "env", "envs": envs}})["message"]
        answer = wire.api("POST", "/v2/sandboxes", {"templateID": "base", "envVars": envs})
        assert (answer.status_code, "environment variable" in answer.json()["message"]) == (400, True)


def test_an_upload_that_is_broken_is_refused(wire, made):
    """No form, a form that ends early, no gzip, gzip that ends early; and a path must be given."""
    access = wire.access(made)
    octets = {**access, "Content-Type": "application/octet-stream"}
    zipped = {**octets, "Content-Encoding": "gzip"}
    form = {**access, "Content-Type": "multipart/form-data; boundary=b"}
    early = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nda'
    for headers, content, path in (
        (octets, b"x", ""),
        (zipped, b"no gzip", "f"),
        (zipped, gzip.compress(b"x" * 1000)[:-9], "f"),
        (form, b"no form", "f"),
        (form, early, "f"),
        ({**access, "Content-Type": "text/plain"}, b"x", "f"),
    ):
        answer = wire.http.post("/files", params={"path": path}, content=content, headers=headers)
        assert answer.status_code == 400, (headers, answer.text)


def test_a_folder_is_no_file_and_a_file_no_folder(sandbox):
    """Each is said in the answer, and nothing is changed."""
    sandbox.files.make_dir("d")
    sandbox.files.write("f", "x")
    for call in (
        lambda: sandbox.files.read("d"),
        lambda: sandbox.files.write("d", "x"),
        lambda: sandbox.files.list("f"),
    ):
        with pytest.raises(SandboxException):
            call()
    assert sandbox.files.read("f") == "x"


def test_a_user_that_is_not_there_is_told(sandbox):
    """A sandbox has `user` and `root`."""
    assert sandbox.commands.run("echo $HOME", user="root").stdout == "/root\n"
    with pytest.raises(SandboxException, match="'nobody'"):
        sandbox.commands.run("true", user="nobody")


def test_a_full_disk_is_told_and_can_be_emptied(sandbox):
    """The sandbox lives on."""
    with pytest.raises(SandboxException, match=r"(?i)space|full"):
        sandbox.files.write("big", bytes(400 * 2**20), use_octet_stream=True)
    sandbox.files.remove("big")
    sandbox.files.write("small", "fits")
    assert sandbox.files.read("small") == "fits"


@pytest.mark.parametrize("name", ["Connect-Timeout-Ms", "Keepalive-Ping-Interval", "Authorization", "Idempotency-Key"])
@pytest.mark.parametrize("value", [b"\xb2", b"9" * 400, b"9" * 5000, b"-1", b"inf", b"Basic /w==", b"\xff\xfe"])
def test_a_header_of_an_odd_form_is_refused_or_left_aside(wire, made, name, value):
    """Digits of another kind, too many of them, bytes that are no text: never an error of the server's own."""
    head = {**wire.access(made), "Content-Type": "application/connect+json", name: value}
    data = json.dumps({"process": {"cmd": "true", "args": []}}).encode()
    started = wire.http.post("/process.Process/Start", content=struct.pack(">BI", 0, len(data)) + data, headers=head)
    assert started.status_code in (200, 400, 401)


def test_a_list_request_of_an_odd_form_is_refused(wire):
    """A page that no list has, a time that no clock has."""
    assert wire.api("GET", "/v2/sandboxes?nextToken=" + "9" * 5000).status_code == 400
    assert wire.api("GET", "/v2/sandboxes?startedAfter=0001-01-01").status_code in (200, 400)


def test_a_fault_of_the_server_is_told_as_one():
    """In the form that clients take apart; the trace is in the server's log."""

    class Faulty:
        async def take(self, *asked, **more):
            raise RuntimeError("a bug")

    app = sandbox_app(Sandboxes(Faulty(), {"base": Template("base")}, 4), "key")

    async def answered():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            return await http.post("/v2/sandboxes", json={"templateID": "base"}, headers={"X-API-KEY": "key"})

    answer = asyncio.run(answered())
    assert (answer.status_code, answer.json()) == (
        500,
        {"code": 500, "message": "the sandbox server failed: RuntimeError: a bug"},
    )
