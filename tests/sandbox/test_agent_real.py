"""`AgentEnv` on the real server of this machine: real processes, real files, real limits."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tiltyard import AgentEnv, APIMultiTurnRollout, LostSessionError, OpenAI, ToolCall, check_env
from tiltyard.envs.agent.held import sandbox_report
from tiltyard.envs.result import FAILURE
from tiltyard.sandbox.server import LocalSandboxServer, shared_server
from tiltyard.testing.openai_server import OpenAIServer

HOSTILE = "it's $(touch /tmp/pwned) `id`; echo x\n-rf \U0001f600"


@pytest.fixture
def make(sandbox_server):
    """Make environments on the session's server; they are closed after the test."""
    made = []

    def make(**options):
        made.append(AgentEnv("base", sandbox_server.url, sandbox_server.api_key, **options))
        return made[-1]

    yield make
    for env in made:
        env.close()


def run(env, command, **arguments):
    return env.step("run_command", {"command": command, **arguments})


def test_a_child_that_holds_the_output_does_not_hold_up_the_command(make):
    """It goes on in the background, and the sandbox stays usable."""
    env = make(command_timeout=20)
    env.reset()
    assert run(env, "sleep 300 & echo started").observation == "started\n"
    assert run(env, "pgrep -c sleep").observation == "1\n"


@pytest.mark.parametrize("command", ["echo part; sleep 120", "echo part; trap '' TERM; sleep 120 & wait; sleep 120"])
def test_a_command_that_passes_its_limit_is_gone_afterwards(make, command):
    """What it had printed is kept, and its process group ends, although it does not listen."""
    env = make(command_timeout=1)
    env.reset()
    result = run(env, command)
    assert result.observation == "part\n[stopped at its time limit of 1 s]\n[exit code: 124]"
    assert result.info["timed_out"] is True
    assert run(env, "pgrep sleep").observation == "[exit code: 1]"


def test_a_command_that_prints_without_end_is_gone_afterwards(make):
    """At the most that is read, and not at its time limit."""
    env = make()
    env.reset()
    result = run(env, "yes")
    assert result.observation.endswith("[stopped after 8 MiB of output]\n[exit code: -1]")
    assert run(env, "pgrep yes").observation == "[exit code: 1]"


def test_a_command_has_no_input_and_its_code_is_shown(make):
    """A program that asks is told that nobody answers."""
    env = make()
    env.reset()
    assert "EOFError" in run(env, "python3 -c 'input()'").observation
    assert run(env, "exit 3").observation == "[exit code: 3]"
    assert run(env, "printf '\\xff ok\\n'; pwd", cwd="/tmp").observation == "\ufffd ok\n/tmp\n"


def test_a_command_of_300_kb_runs(make):
    """Although no argument may be that long."""
    env = make()
    env.reset()
    assert run(env, f"echo {'x' * 300_000} | wc -c").observation == "300001\n"


def test_an_argument_arrives_at_the_program_byte_for_byte(make):
    """Through the template, the SDK, the server and two shells."""
    schema = {
        "type": "function",
        "function": {
            "name": "show",
            "parameters": {
                "type": "object",
                "properties": {"one": {"type": "string"}, "two": {"type": "string"}},
                "required": ["one", "two"],
            },
        },
    }
    env = make().register_command_tool(schema, "python3 -c 'import sys; print(sys.argv[1:])' {one} -- {two}")
    env.reset()
    result = env.step("show", {"one": HOSTILE, "two": ""})
    assert result.observation == f"{[HOSTILE, '--', '']}\n"
    assert run(env, "ls /tmp/pwned").info["exit_code"] == 2


def test_files_pass_between_tools_and_commands(make):
    """A file is a file, whoever wrote it."""
    env = make()
    env.reset()
    content = "EOF\n$(id)\n\u00fc\n"
    env.step("write_file", {"path": "new/a b.txt", "content": content})
    assert run(env, "cat 'new/a b.txt'").observation == content
    run(env, "printf 'from a command' > out.txt; mkfifo pipe")
    assert env.step("read_file", {"path": "out.txt"}).observation == "from a command"
    for path in ("nope", "new", "/dev/zero", "pipe"):
        assert env.step("read_file", {"path": path}).observation.startswith("Error: ")
    assert run(env, "ls", cwd="/nope").observation.startswith("Error: ")


def test_a_sandbox_outlives_its_time_while_it_is_wanted(make):
    """And one that nobody wants does not."""
    kept, left = make(sandbox_timeout=4), make(sandbox_timeout=4, refresh_timeout=False)
    kept.reset()
    left.reset()
    assert run(kept, "sleep 5.5; echo here").observation == "here\n"
    assert isinstance(run(left, "echo here").info[FAILURE], LostSessionError)


def test_episodes_on_threads_do_not_meet(make):
    """Each has its own files, processes and variables."""
    envs = [make(sandbox_envs={"WORD": f"word{number}"}) for number in range(8)]

    def play(env):
        env.reset()
        run(env, "echo $WORD > word; sleep 60 &")
        return run(env, "cat word; pgrep -c sleep; ls").observation

    with ThreadPoolExecutor(8) as threads:
        said = list(threads.map(play, envs))
    assert said == [f"word{number}\n1\nword\n" for number in range(8)]


def test_it_passes_the_conformance_kit_on_the_real_server(sandbox_server):
    """What a model in training writes gets an answer, from a real shell."""
    options = {"template": "base", "api_url": sandbox_server.url, "api_key": sandbox_server.api_key}
    report = check_env(lambda: AgentEnv(**options), max_turns=4)
    assert report.passed, report.findings


def test_the_embedded_default_is_one_server_for_all():
    """Without a URL it is started by the first reset, and shared."""
    with AgentEnv() as one, AgentEnv() as two:
        one.reset()
        two.reset()
        assert run(one, "echo $((1 + 1))").observation == "2\n"
        assert one._session.held.provider.url == two._session.held.provider.url == shared_server().url


def test_a_served_model_plays_many_episodes_at_once(make, sandbox_server):
    """Each in a sandbox of its own; none is left."""
    lines = [
        ToolCall("write_file", {"path": "a.txt", "content": "x"}),
        ToolCall("run_command", {"command": "ls"}),
        "ok",
    ]
    before = sandbox_report()
    with OpenAIServer(lines) as model:
        rollout = APIMultiTurnRollout(
            OpenAI(model="m", base_url=model.base_url, api_key="k"),
            None,
            env_factory=lambda: AgentEnv("base", sandbox_server.url, sandbox_server.api_key),
            max_turns=4,
            concurrency=8,
            reward_fns={"listed": lambda trajectory: float(trajectory["messages"][-2]["content"] == "a.txt\n")},
        )
        results = rollout([{"messages": [{"role": "user", "content": "List your files."}]} for _ in range(16)])
    assert [(result["stop_reason"], result["reward"]) for result in results] == [("stop", 1.0)] * 16
    after = sandbox_report()
    assert after.acquired - before.acquired >= 16  # the preflight looks into one too
    assert after.leaked == before.leaked


def test_a_server_that_ends_in_mid_command_fails_the_episode():
    """It is not text for the model."""
    with LocalSandboxServer(warm=0) as server:
        env = AgentEnv("base", server.url, server.api_key)
        env.reset()
        threading.Timer(0.3, server.close).start()
        result = run(env, "sleep 60")
        assert (result.done, result.reward, result.observation) == (True, None, "")
        assert isinstance(result.info[FAILURE], LostSessionError)
        env.close()
