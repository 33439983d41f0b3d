"""An episode in a sandbox, on the scripted server: what the model sees, and what it does not."""

import pytest

from tiltyard import AgentEnv, ConfigurationError, EpisodeOverError, ToolError, check_env
from tiltyard.errors import EnvError
from tiltyard.testing.sandbox_server import Said, SandboxServer
from tiltyard.types import StepResult

ECHO = {
    "type": "function",
    "function": {
        "name": "submit",
        "description": "Hand in.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}


@pytest.fixture
def server():
    script = {
        "hello": Said("hello\n"),
        "mixed": Said("out\n", "warned\n", 3),
        "long": Said(["a" * 50_000, "THE END"], ["e" * 50_000, "Traceback"], 1),
        "endless": Said(["y\n" * 500_000] * 10),
        "no-such-dir": Said(error=("invalid_argument", "cwd '/no-such-dir' does not exist")),
    }
    with SandboxServer(script) as server:
        yield server


@pytest.fixture
def env(server):
    with AgentEnv("my-env", server.url, command_timeout=5) as env:
        yield env


def test_each_episode_has_a_sandbox_of_its_own(env, server):
    """The old one is killed by the next reset, the last one by close."""
    env.reset()
    first = env.sandbox_id
    env.reset()
    assert (server.killed, list(server.sandboxes)) == ([first], [env.sandbox_id])
    env.close()
    env.close()
    assert (server.killed, server.sandboxes) == (server.created, {})


def test_a_command_gives_what_it_printed_and_a_code_that_is_not_0(env):
    """A failing command is text for the model, not an exception."""
    env.reset()
    assert env.step("run_command", {"command": "hello"}).observation == "hello\n"
    result = env.step("run_command", {"command": "mixed"})
    assert result.observation == "out\n[stderr]\nwarned\n[exit code: 3]"
    assert (result.done, result.reward, result.info) == (False, None, {"exit_code": 3})
    assert env.run_command({"command": "mixed"}) == result.observation


def test_a_long_output_keeps_its_head_its_tail_its_errors_and_its_code(env):
    """The end of a log is where its error stands: each stream is cut in the middle, and the code never."""
    env.reset()
    result = env.step("run_command", {"command": "long"})
    text = result.observation
    assert len(text) <= 32_000
    assert text.startswith("aaaa")
    assert "THE END\n[stderr]\neeee" in text
    assert text.endswith("Traceback\n[exit code: 1]")
    assert text.count("characters cut") == 2
    assert result.info == {"exit_code": 1, "observation_truncated": True}


def test_a_command_that_prints_without_end_is_stopped_with_its_group(env, server):
    """The rest would not be shown, and the sandbox stays usable."""
    env.reset()
    result = env.step("run_command", {"command": "endless"})
    assert "[stopped after 8 MiB of output]\n[exit code: -1]" in result.observation
    assert "kill -KILL -- -42" in server.commands[-1]
    assert env.step("run_command", {"command": "hello"}).observation == "hello\n"


def test_a_command_is_bounded_in_the_sandbox_too(env, server):
    """Its process group ends with it, its stdin is closed, and it reaches bash byte for byte."""
    env.reset()
    env.step("run_command", {"command": "echo 'it''s' $HOME", "cwd": "/tmp"})
    assert server.commands[-1] == "exec timeout -k 2 5 bash -c 'echo '\"'\"'it'\"'\"''\"'\"'s'\"'\"' $HOME' </dev/null"


def test_a_long_command_is_not_ended_by_a_smaller_limit_of_somebody_elses(server):
    """The SDK's default is 60 s; what counts is the environment's own, in the sandbox and a little later here."""
    with AgentEnv("my-env", server.url, command_timeout=120, sandbox_timeout=60) as env:
        env.reset()
        env.step("run_command", {"command": "hello"})
        assert server.commands[-1].startswith("exec timeout -k 2 120 bash")
        assert server.limits_s == [130.0]
        assert server.sandboxes[env.sandbox_id].timeout_s == 60


def test_a_command_too_long_for_an_argument_goes_through_a_file(env, server):
    """Linux takes no argument of 128 KiB."""
    env.reset()
    env.step("run_command", {"command": "# " + "x" * 300_000})
    assert "bash /tmp/.command-" in server.commands[-1]
    ((path, content),) = server.sandboxes[env.sandbox_id].files.items()
    assert (path.startswith("/tmp/.command-"), len(content)) == (True, 300_002)


def test_files_are_written_and_read(env):
    """What is not UTF-8 is shown as well as it can be; a lone surrogate is written as U+FFFD."""
    env.reset()
    assert env.step("write_file", {"path": "/a", "content": "h\xe9\ud800\n"}).observation == "Wrote 7 bytes to /a."
    assert env.step("read_file", {"path": "/a"}).observation == "h\xe9\ufffd\n"
    assert env.step("read_file", {"path": "/b"}).observation.startswith("Error: FileNotFoundException")


def test_a_long_file_is_shown_with_head_and_tail(env, server):
    """The cut is in the text and in the info."""
    env.reset()
    server.sandboxes[env.sandbox_id].files["/log"] = b"start" + b"x" * 10_000_000 + b"end"
    text = env.step("read_file", {"path": "/log"}).observation
    assert text.startswith("startxx")
    assert "characters cut" in text
    assert len(text) <= 32_000


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("run_command", {}, "'command' is a required property"),
        ("run_command", {"command": "x", "user": "root"}, "'user' was unexpected"),
        ("run_command", {"command": 3}, "3 is not of type 'string'"),
        ("run_command", {"command": "  "}, "must be a command for bash"),
        ("run_command", {"command": "a\0b"}, "NUL"),
        ("run_command", {"command": "no-such-dir", "cwd": "/no-such-dir"}, "does not exist"),
        ("write_file", {"path": "", "content": "x"}, "must be the path of a file"),
        ("read_file", {"path": "a\0b"}, "must be the path of a file"),
        ("shell", {"command": "x"}, "there is no tool 'shell'; the tools are: run_command, write_file, read_file"),
    ],
)
def test_what_the_model_does_wrong_is_told_to_it(env, tool, arguments, said):
    """The observation begins with `Error:`, and the episode goes on."""
    env.reset()
    result = env.step(tool, arguments)
    assert result.observation.startswith("Error: ")
    assert said in result.observation
    assert (result.done, result.reward, "tool_error" in result.info) == (False, None, True)


@pytest.mark.parametrize(("asked", "limit"), [(0, "5"), (-1, "5"), (2.5, "2.5"), (10**9, "5"), (None, "5")])
def test_a_time_limit_that_the_model_asks_for_is_cut_to_the_environments(env, server, asked, limit):
    """0 is never "no limit"."""
    env.reset()
    env.run_command({"command": "hello", "timeout": asked})
    assert server.commands[-1].startswith(f"exec timeout -k 2 {limit} bash")


@pytest.mark.parametrize("asked", ["soon", True, float("nan"), [1]])
def test_a_time_limit_that_is_no_number_is_refused(env, asked):
    """It is not guessed what was meant."""
    env.reset()
    with pytest.raises(ToolError, match="'timeout' must be a number of seconds"):
        env.run_command({"command": "hello", "timeout": asked})


def test_setup_commands_run_after_each_reset_and_are_the_observation(server):
    """In their order."""
    with AgentEnv("my-env", server.url, setup_commands=["hello", "true", "hello"]) as env:
        assert env.reset().observation == "hello\n\nhello\n"
        assert env.reset().observation == "hello\n\nhello\n"


def test_a_setup_command_that_fails_fails_the_reset_and_leaves_no_sandbox(server):
    """The error has the command, its code and what it printed."""
    env = AgentEnv("my-env", server.url, setup_commands=["hello", "mixed"])
    with pytest.raises(
        EnvError, match=r"setup command 2 of 2 failed: 'mixed'\nout\n\[stderr\]\nwarned\n\[exit code: 3"
    ):
        env.reset()
    assert (server.killed, server.sandboxes) == (server.created, {})
    with pytest.raises(EpisodeOverError, match="after a reset\\(\\) that failed"):
        env.step("run_command", {"command": "hello"})


def test_the_sandbox_has_the_given_variables_and_says_whose_it_is(server):
    """Run, episode, host and process stand in the metadata, beside what the caller gave."""
    with AgentEnv("my-env", server.url, sandbox_envs={"A": "1"}, metadata={"kind": "x y"}, run_id="run 7") as env:
        env.reset()
        (sandbox,) = server.sandboxes.values()
        assert (sandbox.envs, sandbox.metadata["kind"], sandbox.metadata["tiltyard_run"]) == (
            {"A": "1"},
            "x y",
            "run 7",
        )
        assert {"tiltyard_episode", "tiltyard_host", "tiltyard_pid"} < sandbox.metadata.keys()


def test_a_registered_tool_runs_beside_the_sandbox_and_shadows_a_built_in_one(server):
    """Text earns nothing; a `StepResult` may score and end the episode."""
    with AgentEnv("my-env", server.url, include_default_tools=False) as env:
        shadow = {"type": "function", "function": {"name": "run_command", "description": "Other."}}
        same = env.register_tool(ECHO, lambda env, given: StepResult(given["text"], 1.0, True)).register_tool(
            shadow, lambda env, given: env.run_command({"command": "hello"})
        )
        assert same is env
        assert [tool["function"]["name"] for tool in env.tools()] == ["submit", "run_command"]
        env.reset()
        assert env.step("run_command", {}).observation == "hello\n"
        result = env.step("submit", {"text": "done"})
        assert (result.observation, result.reward, result.done) == ("done", 1.0, True)
        with pytest.raises(EpisodeOverError, match="after the end of the episode"):
            env.step("run_command", {})


def test_what_a_handler_raises_is_told_to_the_model_while_the_sandbox_lives(env):
    """A step never raises for it."""

    def broken(env, given):
        raise KeyError(given["text"])

    env.register_tool(ECHO, broken).reset()
    result = env.step("submit", {"text": "x"})
    assert (result.observation, result.done) == ("Error: KeyError: 'x'", False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"template": None}, "template is required"),
        ({"template": ""}, "template must be the name"),
        ({"api_url": "10.0.0.5:8000"}, "api_url must be http"),
        ({"sandbox_timeout": 0}, "sandbox_timeout must be a whole number"),
        ({"sandbox_timeout": 1.5}, "sandbox_timeout must be a whole number"),
        ({"command_timeout": 0}, "command_timeout must be a number of seconds > 0"),
        ({"command_timeout": -1}, "command_timeout must be a number"),
        ({"command_timeout": None}, "command_timeout must be a number"),
        ({"setup_commands": [""]}, "a setup command must be a line"),
        ({"sandbox_envs": {"A": 1}}, "sandbox_envs must map text to text"),
        ({"metadata": {"tiltyard_run": "x"}}, "are taken"),
        ({"metadata": ["ab"]}, "metadata must be a mapping of text to text, got"),
        ({"sandbox_envs": {"A=B": "1"}}, "sandbox_envs has 'A=B', which cannot name a variable"),
        ({"setup_commands": 5}, "setup_commands must be a list of lines for a shell, got 5"),
        ({"api_url": "http://127.0.0.1:99999"}, "api_url must be http"),
        ({"api_url": "http://a b"}, "api_url must be http"),
        ({"api_key": "a key\n"}, "must be ASCII characters without spaces or line ends"),
        ({"api_key": "ключ"}, "must be ASCII characters without spaces or line ends"),
        ({"run_id": ""}, "run_id must be a text that names the run, got ''"),
        ({"refresh_timeout": "no"}, "refresh_timeout must be true or false, got 'no'"),
    ],
)
def test_options_that_cannot_work_are_refused_before_a_server_is_asked(options, said):
    """The message says what was given."""
    with pytest.raises(ConfigurationError, match=said):
        AgentEnv(**{"template": "my-env", "api_url": "http://127.0.0.1:9", **options})


def test_a_handler_that_is_no_plain_function_is_refused_when_it_is_registered(env):
    """The model would be told of it as of a mistake of its own."""

    async def later(env, given):
        return given["text"]

    for handler in (None, later):
        with pytest.raises(ConfigurationError, match="the handler of tool 'submit' must be a function"):
            env.register_tool(ECHO, handler)


def test_a_name_that_is_no_text_is_a_tool_that_there_is_not(env):
    """A step never raises for what a model asks."""
    env.reset()
    assert env.step([], {}).observation.startswith("Error: there is no tool []")


def test_options_that_there_are_not_are_refused():
    """A typing error is not a default."""
    with pytest.raises(TypeError, match="sandbox_timeot"):
        AgentEnv("my-env", "http://127.0.0.1:9", sandbox_timeot=3)  # pyright: ignore


def test_the_server_and_its_key_may_come_from_the_environment(server, monkeypatch):
    """E2B_API_URL and E2B_API_KEY are read; nothing is written."""
    monkeypatch.setenv("E2B_API_URL", server.url)
    with AgentEnv("my-env") as env:
        env.reset()
        assert env.step("run_command", {"command": "hello"}).observation == "hello\n"


def test_a_variable_that_is_empty_names_no_server(monkeypatch):
    """As when it is not set: the local server is meant, and no template has to be named."""
    monkeypatch.setenv("E2B_API_URL", "")
    assert AgentEnv().sandbox_id is None


def test_there_is_no_sandbox_before_the_first_reset_and_after_close(env):
    """Closing what was never opened does no harm."""
    env.close()
    assert env.sandbox_id is None
    with pytest.raises(EpisodeOverError, match="there is no sandbox"):
        _ = env.sandbox
    with pytest.raises(EpisodeOverError, match="after close"):
        env.step("run_command", {"command": "hello"})


def test_it_passes_the_conformance_kit(server):
    """Whatever a model in training writes gets an answer."""
    report = check_env(lambda: AgentEnv("my-env", server.url), max_turns=4)
    assert report.passed, report.findings
    assert server.sandboxes == {}
