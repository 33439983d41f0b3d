"""A server's life: it ends with nothing left, whatever was going on in it."""

import os
import re
import socket
import subprocess
import sys
import threading
import time

import e2b
import httpx
import pytest
from sandbox_left import marked

from tiltyard.errors import ConfigurationError
from tiltyard.sandbox.box_model import BoxLimits, Template
from tiltyard.sandbox.server import LocalSandboxServer, shared_server

SHARED = """
import sys, e2b
from tiltyard.sandbox.server import shared_server
server = shared_server()
sandbox = e2b.E2B(api_url=server.url, sandbox_url=server.url, api_key=server.api_key).Sandbox.create("base")
print(next(iter(sandbox.commands.run(f"echo up; sleep {sys.argv[1]}", background=True)))[0], end="")
"""

pytestmark = pytest.mark.usefixtures("sandbox_server")  # nothing here can be where that cannot


def client(server):
    return e2b.E2B(api_url=server.url, sandbox_url=server.url, api_key=server.api_key).Sandbox


def in_thread(call):
    """What a call raises on another thread, once it is over."""
    raised = []

    def run():
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the test looks at what it is
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_a_sandbox_that_is_killed_ends_its_commands_at_once(sdk):
    """The command's own caller is told that the sandbox is gone, and does not wait for its time-out."""
    sandbox = sdk.Sandbox.create("base", timeout=60)
    command = sandbox.commands.run("sleep 60", background=True)
    thread, raised = in_thread(command.wait)
    sandbox.kill()
    thread.join(10)
    assert isinstance(raised[0], e2b.TimeoutException)
    assert "was killed or reached its end of life" in str(raised[0])


def test_a_sandbox_that_dies_by_itself_is_gone(sdk):
    """Everything in it killed from inside: the next call is told, and the server has one less."""
    sandbox = sdk.Sandbox.create("base", timeout=60)
    with pytest.raises(e2b.SandboxException):
        sandbox.commands.run("python3 -c 'x = bytearray(1 << 40)' ; kill -9 -1; exit 1")
    sandbox.kill()
    assert not sandbox.is_running()


def test_closing_a_server_ends_everything_in_it():
    """Commands under way are cut off, no process is left, and the port is free."""
    server = LocalSandboxServer(warm=1)
    mark = f"7{os.getpid()}.5"
    command = client(server).create("base", timeout=60).commands.run(f"sleep {mark}", background=True)
    thread, raised = in_thread(command.wait)
    assert (server.live, len(marked(mark)) > 0) == (1, True)
    server.close()
    server.close()
    thread.join(10)
    assert isinstance(raised[0], Exception)
    assert (server.live, marked(mark)) == (0, [])
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", int(server.url.rpartition(":")[2])))


def test_a_server_that_is_gone_is_told_as_a_failed_connection():
    """Not as an empty answer, and not after a long wait."""
    server = LocalSandboxServer(warm=0)
    sdk = e2b.E2B(api_url=server.url, sandbox_url=server.url, api_key=server.api_key, retries=0)
    sandbox = sdk.Sandbox.create("base", timeout=60)
    server.close()
    with pytest.raises(Exception, match=r"(?i)connect|refused"):
        sandbox.get_info()


def test_a_key_is_random_unless_it_is_given():
    """It has the form that the SDK asks for."""
    with LocalSandboxServer(warm=0) as one, LocalSandboxServer(warm=0, api_key="mine") as other:
        assert one.api_key.startswith("e2b_")
        assert one.api_key != other.api_key == "mine"
        assert httpx.get(f"{other.url}/v2/sandboxes", headers={"X-API-KEY": "mine"}).json() == []


def test_a_server_takes_so_many_sandboxes_and_no_more():
    """The next one is refused; one that ends makes room."""
    with LocalSandboxServer(warm=0, max_sandboxes=1) as server:
        made = client(server).create("base", timeout=60)
        with pytest.raises(e2b.RateLimitException, match="has 1 sandboxes"):
            client(server).create("base", timeout=60, retries=0)
        made.kill()
        client(server).create("base", timeout=60)


def test_templates_have_set_ups_variables_and_limits():
    """A set-up is run once for all sandboxes of a template; one that fails is told to whoever asks for one."""
    ready = Template(
        "ready", setup=("echo once > /home/user/set-up",), envs={"FROM": "template"}, limits=BoxLimits(256, disk_mib=64)
    )
    broken = Template("broken", setup=("echo it is broken >&2; exit 3",))
    with LocalSandboxServer([ready, broken], warm=0) as server:
        assert sorted(server.templates) == ["base", "broken", "ready"]
        sandbox = client(server).create("ready", timeout=60)
        assert sandbox.commands.run("cat set-up; echo $FROM").stdout == "once\ntemplate\n"
        assert sandbox.get_info().memory_mb == 256
        with pytest.raises(e2b.SandboxException, match="it is broken"):
            client(server).create("broken", timeout=60)


@pytest.mark.parametrize(
    ("asked", "reached"),
    [
        ({}, True),
        ({"allow_internet_access": False}, False),
        ({"network": {"deny_out": ["0.0.0.0/0"]}}, False),
    ],
)
def test_a_network_can_be_taken_from_one_sandbox(asked, reached):
    """Of a template that has it: then there is none at all, and not a rule in its way."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        LocalSandboxServer([Template("net", network=True)]) as server,
    ):
        sandbox = client(server).create("net", timeout=60, **asked)
        program = f"import socket; socket.create_connection(('127.0.0.1', {listening.getsockname()[1]}), 5)"
        found = sandbox.commands.run(f'python3 -c "{program}" 2> /dev/null && echo reached || echo cut off').stdout
        assert found == ("reached\n" if reached else "cut off\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"warm": -1}, "warm must be a whole number >= 0, got -1"),
        ({"warm": "2"}, "warm must be a whole number >= 0, got '2'"),
        ({"max_sandboxes": 0}, "max_sandboxes must be a whole number >= 1, got 0"),
        ({"api_key": " "}, "api_key must be ASCII characters without spaces"),
        ({"api_key": "ключ"}, "api_key must be ASCII characters without spaces"),
        ({"host": ""}, "host must be an address such as 127.0.0.1, got ''"),
        ({"port": "8890"}, "port must be a whole number, got '8890'"),
        ({"templates": "base"}, "templates must be a list of Template, got 'base'"),
        ({"templates": ["base"]}, "templates must be Template(name, …), one is 'base'"),
        ({"templates": [Template("a"), Template("a")]}, "two templates have one name; got ['a', 'a']"),
        ({"port": 70_000}, "port=70000"),
        ({"host": "192.0.2.1"}, "cannot listen on host='192.0.2.1'"),
    ],
)
def test_a_server_that_cannot_be_says_why(options, said):
    """Before anything is started."""
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        LocalSandboxServer(**options)


def test_the_shared_server_is_one_a_process():
    """A forked child has none until it asks, and does not end its parent's."""
    server = shared_server()
    assert shared_server() is server
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            server.close()
            other = shared_server()
            os.write(tell, other.url.encode())
            other.close()
        finally:
            os._exit(0)
    os.close(tell)
    with os.fdopen(told) as pipe:
        url = pipe.read()
    os.waitpid(pid, 0)
    assert url.startswith("http://127.0.0.1:")
    assert url != server.url
    sandbox = client(server).create("base", timeout=60)
    assert sandbox.commands.run("echo still here").stdout == "still here\n"
    sandbox.kill()


def test_a_stalled_client_does_not_hold_the_others_up(sdk):
    """A command whose output nobody reads waits; everything else goes on as before."""
    sandbox = sdk.Sandbox.create("base", timeout=60)
    stalled = sandbox.commands.run("yes", background=True)
    time.sleep(0.2)
    assert sandbox.commands.run("echo fine").stdout == "fine\n"
    assert stalled.kill()
    sandbox.kill()


def test_the_shared_server_ends_with_the_process():
    """Whatever is in it, and without a word: nothing of it is left."""
    mark = f"9{os.getpid()}.125"
    done = subprocess.run([sys.executable, "-c", SHARED, mark], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "up\n", "")
    assert marked(f"sleep\0{mark}") == []
