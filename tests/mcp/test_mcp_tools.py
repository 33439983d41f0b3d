"""The tools of a real MCP server, over stdio and over HTTP on this machine."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from tiltyard.envs.turns import as_turns, refuse_shared
from tiltyard.errors import ConfigurationError, EnvTimeoutError, LostSessionError
from tiltyard.leases import Leases
from tiltyard.rollout.episode import episode
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.tools.mcp import McpServer, mcp_factory, mcp_tools
from tiltyard.types import Reply, Task, ToolCall

SERVER = str(Path(__file__).parent / "mcp_test_server.py")
COMMAND = (sys.executable, SERVER)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def http_server():
    """Start a server; gives its process and URL once it listens."""
    port = free_port()
    process = subprocess.Popen([*COMMAND, "http", str(port)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return process, f"http://127.0.0.1:{port}/mcp"
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the MCP server did not start")


@pytest.fixture(scope="module")
def url():
    process, address = http_server()
    yield address
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def stdio():
    with mcp_tools(COMMAND) as tools:
        yield tools


@pytest.fixture(scope="module")
def over_http(url):
    with mcp_tools(url) as tools:
        yield tools


@pytest.fixture(params=["stdio", "over_http"])
def tools(request):
    return request.getfixturevalue(request.param)


def step(tools, name, **arguments):
    return tools.step(ToolCall(name, arguments))


def test_tools_keep_their_names_and_schemas(tools):
    """What the server says is what the model is shown, odd names too."""
    assert tools.names[0] == "add"
    assert "server.with/odd-name" in tools.names
    function = tools.tool_infos()[0]["function"]
    assert function["description"] == "Add two integers."
    assert function["parameters"]["required"] == ["a", "b"]


def test_a_result_is_its_text(tools):
    """A plain tool earns nothing and is never done."""
    result = step(tools, "add", a=1, b=2)
    assert (result.observation, result.reward, result.done) == ("3", 0.0, False)


def test_a_failing_tool_is_the_model_s_mistake(tools):
    """Its text is what the model sees, and the episode goes on."""
    result = step(tools, "fail", why="no such city")
    assert "no such city" in result.observation
    assert result.observation.startswith("Error: ")
    assert result.info == {"tool_error": "failed"}


def test_arguments_that_do_not_fit_never_reach_the_server(stdio):
    """They are checked against the server's schema here."""
    before = int(step(stdio, "count").observation)
    assert step(stdio, "add", a="1", b=2).info == {"tool_error": "bad_arguments"}
    assert step(stdio, "count", more=1).info == {}
    assert int(step(stdio, "count").observation) == before + 2


def test_an_image_leaves_a_line_that_says_so(stdio):
    """It is not dropped silently."""
    assert step(stdio, "picture").observation == "see:\n[image: image/png, 9 bytes, not shown]"


def test_structured_content_is_shown_once(stdio):
    """Where the text says it already it is not repeated; where it does not, it is added."""
    assert step(stdio, "record").observation.count("exit_code") == 1
    assert step(stdio, "pieces").observation == (
        'first\n[resource: file:///a.txt]\ninside\n[resource: file:///b.txt (b)]\n{"found": 3}'
    )


def test_a_call_that_is_not_answered_in_time_fails_the_episode(url):
    """The deadline is ours; the session stays open for what comes after."""
    with mcp_tools(McpServer(url=url, call_timeout_s=1.5)) as tools:
        with pytest.raises(EnvTimeoutError, match=r"'sleep' .* within call_timeout_s=1\.5"):
            step(tools, "sleep", seconds=30)
        assert step(tools, "add", a=1, b=2).observation == "3"


def test_a_server_that_dies_is_a_lost_session_with_its_last_words():
    """The next call does not run on a new server that knows nothing of the episode; the next episode does."""
    with mcp_tools(COMMAND) as tools:
        step(tools, "count")
        with pytest.raises(LostSessionError, match=r"it last wrote: (?s:.)*goodbye"):
            step(tools, "die")
        assert not tools.held
        with pytest.raises(LostSessionError, match="is gone"):
            step(tools, "count")
        as_turns(tools).start(Task())
        assert step(tools, "count").observation == "1"


def test_a_killed_http_server_is_a_lost_session():
    """It is not a mistake of the model's."""
    process, address = http_server()
    with mcp_tools(address) as tools:
        process.kill()
        process.wait()
        with pytest.raises(LostSessionError):
            step(tools, "add", a=1, b=2)


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (McpServer(command=("no-such-program-at-all",)), "No such file"),
        (McpServer(command=(sys.executable, "-c", "raise SystemExit('bad key')")), "it last wrote: bad key"),
        (
            McpServer(command=(sys.executable, "-c", "import time; time.sleep(60)"), connect_timeout_s=0.5),
            r"within connect_timeout_s=0\.5",
        ),
        (McpServer(url="http://127.0.0.1:9/mcp"), "ConnectError"),
    ],
    ids=["no program", "ends at once", "says nothing", "nobody listens"],
)
def test_a_server_that_cannot_be_reached_is_named_with_the_reason(server, why):
    """When the tools are made, not in the first call."""
    with pytest.raises(LostSessionError, match=why) as failure:
        mcp_tools(server)
    assert server.name in str(failure.value)


def test_close_is_done_once_and_counted_as_a_lease():
    """Whoever closes first: the tools, the turns or the run."""
    with Leases() as leases:
        tools = mcp_tools(COMMAND, leases=leases)
        assert leases.report().leaked == 1
        tools.close()
        tools.close()
        as_turns(tools).close()
        report = leases.close()
        assert (report.acquired, report.leaked, report.failures) == (1, 0, ())
        with pytest.raises(LostSessionError):
            step(tools, "count")


def test_the_environment_is_passed_explicitly(stdio):
    """This process's own is neither inherited nor written to."""
    before = dict(os.environ)
    with mcp_tools(McpServer(command=COMMAND, env={"TOKEN_OF_THE_TEST": "t"})) as tools:
        assert step(tools, "environment", variable="TOKEN_OF_THE_TEST").observation == "t"
        assert step(tools, "environment", variable="PYTEST_CURRENT_TEST").observation == "not set"
    assert dict(os.environ) == before


def test_episodes_that_run_at_once_need_a_session_each(url, stdio):
    """Unless it is said that they may share one."""
    with pytest.raises(ConfigurationError, match="McpSession was given to several episodes"):
        refuse_shared([stdio, stdio.copy()])
    with mcp_tools(url, shared=True) as shared:
        refuse_shared([shared, shared.copy()])
        as_turns(shared).close()
        assert shared.held


def test_a_factory_opens_a_session_for_each_episode():
    """Each has a server's process, and state, of its own."""
    make = mcp_factory(COMMAND, only=["count"])
    with make() as first, make() as second:
        assert first.names == ["count"]
        assert [step(tools, "count").observation for tools in (first, first, second)] == ["1", "2", "1"]


def test_an_episode_with_several_calls_in_a_turn(url):
    """The calls run at once where that is allowed; the results come in the order of the calls."""
    with mcp_tools(url, parallel=True) as tools:
        play = episode(tools, Task(messages=({"role": "user", "content": "?"},)), Limits())
        next(play)
        calls = (
            ToolCall("sleep", {"seconds": 0.1}, "a"),
            ToolCall("add", {"a": 1, "b": 2}, "b"),
            ToolCall("no", {}, "c"),
        )
        prompt = play.send(Reply("", calls))
        assert [(m["tool_call_id"], m["content"]) for m in prompt.new][:2] == [("a", "awake"), ("b", "3")]
        with pytest.raises(StopIteration) as end:
            play.send(Reply("done"))
        assert end.value.value.ending is Ending.STOP


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of them"),
        ({"command": ("x",), "url": "http://x"}, "exactly one of them"),
        ({"url": "server.py"}, "give a command as a list"),
        ({"url": "http://x", "env": {"A": "b"}}, "env and cwd with a command"),
        ({"command": ("x",), "headers": {"A": "b"}}, "headers go with a url"),
        ({"command": ("x",), "call_timeout_s": 0}, "call_timeout_s must be > 0, got 0"),
        ({"command": ("x",), "call_timeout_s": None}, "call_timeout_s must be > 0, got None"),
        ({"command": ("x",), "env": {"A": 1}}, r"env must be a dict of texts, got \{'A': 1\}"),
        ({"url": "http://x", "headers": ["A: b"]}, "headers must be a dict of texts"),
        ({"command": ("x", 5)}, r"must be texts, got \('x', 5\)"),
    ],
)
def test_a_server_that_cannot_be_is_refused_at_once(options, message):
    """Before anything is started."""
    with pytest.raises(ConfigurationError, match=message):
        McpServer(**options)


@pytest.mark.parametrize("server", [None, 5, {"command": "python", "args": ["server.py"]}])
def test_what_is_no_server_says_what_one_is(server):
    """A dict of other programs' settings, too, whose keys are no command."""
    with pytest.raises(ConfigurationError, match=r"a URL, a command as a list, or a McpServer\(.*got "):
        mcp_factory(server)


def test_one_name_is_no_list_of_names(url):
    """Its letters are no tools."""
    for make in (mcp_tools, mcp_factory):
        with pytest.raises(ConfigurationError, match=r"write only=\['add'\]"):
            make(url, only="add")


def test_a_tool_that_the_server_does_not_have_is_refused(url):
    """The message lists those it has."""
    with pytest.raises(ConfigurationError, match="has no tool 'subtract'; it has: add, count"):
        mcp_tools(url, only=["subtract"])
