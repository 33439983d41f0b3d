"""What goes wrong outside the model: the episode fails, unscored, and nothing is left behind."""

import json
import logging
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from e2b.api.metadata import package_version

from tiltyard import AgentEnv, APIMultiTurnRollout, ConfigurationError, LostSessionError, OpenAI, ToolCall
from tiltyard.cli import main
from tiltyard.envs.agent.held import sandbox_report
from tiltyard.envs.agent.options import Place
from tiltyard.envs.result import FAILURE
from tiltyard.errors import EnvError, RolloutError, ServerFullError
from tiltyard.leases import lost_leases
from tiltyard.testing.openai_server import OpenAIServer
from tiltyard.testing.sandbox_server import Fault, Said, SandboxServer

SLOW_LINE = {"slow": Said(["part one\n", "part two\n"], "and why\n", 124), "hello": Said("hello\n")}


@contextmanager
def opened(server, **options):
    with server, AgentEnv("my-env", server.url, **{"start_timeout_s": 1.0, **options}) as env:
        yield env


def failure(result):
    assert (result.done, result.reward, result.observation) == (True, None, "")
    assert result.info["error"] == str(result.info[FAILURE])
    return result.info[FAILURE]


@pytest.mark.parametrize("status", [502, 404, 410])
@pytest.mark.parametrize(
    "call",
    [
        ("run_command", {"command": "hello"}),
        ("read_file", {"path": "/a"}),
        ("write_file", {"path": "/a", "content": "x"}),
    ],
    ids=lambda call: call[0],
)
def test_a_sandbox_that_is_gone_fails_the_episode(status, call):
    """However its server says so: it is no text for the model, and no reward of 0."""
    server = SandboxServer(SLOW_LINE, dead_status=status)
    with opened(server) as env:
        env.reset()
        server.drop(env.sandbox_id)
        error = failure(env.step(*call))
        assert type(error) is LostSessionError
        assert f"sandbox {env.sandbox_id} is gone" in str(error)


def test_a_paused_sandbox_is_gone_too():
    """Nobody resumes it behind the episode's back."""
    server = SandboxServer({"hello": Said(drops=True)})
    with opened(server) as env:
        env.reset()
        server.sandboxes[env.sandbox_id].state = "paused"
        assert "its state is 'paused'" in str(failure(env.step("run_command", {"command": "hello"})))


def test_a_server_that_is_gone_fails_the_episode_and_the_next_reset_finds_it_again():
    """The lost sandbox is not used again, and nothing is sent twice."""
    server = SandboxServer(SLOW_LINE)
    with opened(server) as env:
        env.reset()
        server.stop()
        assert "does not answer" in str(failure(env.step("run_command", {"command": "hello"})))
        server.start()
        env.reset()
        assert env.step("run_command", {"command": "hello"}).observation == "hello\n"


def test_a_connection_that_breaks_is_not_a_slow_command():
    """Nobody knows what the command did, so the episode cannot be scored, although the sandbox lives."""
    with opened(SandboxServer({"hello": Said("part", drops=True)})) as env:
        env.reset()
        error = failure(env.step("run_command", {"command": "hello"}))
        assert type(error) is EnvError
        assert "lives, but a call to it failed" in str(error)


def test_a_sandbox_that_dies_in_mid_command_fails_the_episode():
    """The command's stream ends, and the control plane is asked why."""
    server = SandboxServer({"hello": Said("part", hangs=True)})
    with opened(server) as env:
        env.reset()
        name = env.sandbox_id
        threading.Timer(0.1, lambda: server.drop(name)).start()
        assert type(failure(env.step("run_command", {"command": "hello"}))) is LostSessionError


def test_a_handler_that_meets_a_dead_sandbox_fails_the_episode():
    """What the SDK raises in it is not told to the model."""
    server = SandboxServer()
    with opened(server) as env:
        env.register_tool(
            {"type": "function", "function": {"name": "peek"}}, lambda env, _: env.sandbox.files.read("/a")
        )
        env.reset()
        assert env.step("peek", {}).observation.startswith("Error: FileNotFound")
        server.drop(env.sandbox_id)
        assert type(failure(env.step("peek", {}))) is LostSessionError


def test_a_command_that_passes_its_limit_keeps_what_it_printed():
    """It is an observation with a code of its own; the sandbox stays usable."""
    server = SandboxServer({"slow": Said(["part one\n"], "why\n", hangs=True, for_s=0.3), "hello": Said("hello\n")})
    with opened(server, command_timeout=0.2) as env:
        env.reset()
        result = env.step("run_command", {"command": "slow"})
        assert result.observation == "part one\n[stderr]\nwhy\n[stopped at its time limit of 0.2 s]\n[exit code: 124]"
        assert (result.done, result.info) == (False, {"exit_code": 124, "timed_out": True})
        assert env.step("run_command", {"command": "hello"}).observation == "hello\n"
        assert server.commands[1].startswith("kill -KILL -- -42")


def test_a_command_that_ends_with_124_by_itself_did_not_time_out():
    """The code alone does not say so; the time does."""
    with opened(SandboxServer(SLOW_LINE)) as env:
        env.reset()
        result = env.step("run_command", {"command": "slow"})
        assert result.observation == "part one\npart two\n[stderr]\nand why\n[exit code: 124]"
        assert "timed_out" not in result.info


@pytest.mark.parametrize("refused", ["/sandboxes", "/v2/sandboxes"])
def test_a_server_of_another_generation_is_told_apart_with_both_cures(refused):
    """e2b asks at /v2/sandboxes since 2.51; 405 alone would not say that."""
    server = SandboxServer(refuses=refused)
    with opened(server) as env:
        if _asks_at() != refused:
            env.reset()
            return
        with pytest.raises(ConfigurationError, match=r"e2b .* is installed.*'e2b<2\.51'.*'e2b>=2\.51'"):
            env.reset()


def _asks_at():
    return "/v2/sandboxes" if tuple(map(int, package_version.split(".")[:2])) >= (2, 51) else "/sandboxes"


def test_a_template_that_the_server_does_not_know_is_named():
    """It is not tried for half a minute."""
    with SandboxServer() as server, pytest.raises(ConfigurationError, match="has no template 'other'"):
        AgentEnv("other", server.url).reset()


def test_a_key_that_the_server_refuses_is_named():
    """As the setting that it is."""
    with (
        opened(SandboxServer(faults={"create": [Fault(401)]})) as env,
        pytest.raises(ConfigurationError, match="E2B_API_"),
    ):
        env.reset()


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_server_that_is_full_or_restarting_is_tried_again(status):
    """Within `start_timeout_s`."""
    server = SandboxServer(faults={"create": [Fault(status)]})
    with opened(server) as env:
        env.reset()
        assert len(server.created) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_stays_full_says_so(status):
    """It is not the episode's fault, nor the model's."""
    server = SandboxServer(faults={"create": [Fault(status)] * 9})
    with opened(server, start_timeout_s=0.3) as env, pytest.raises(ServerFullError, match=r"had no room .* for 0\.3 s"):
        env.reset()


def test_a_server_that_is_not_there_says_so():
    """With its address."""
    env = AgentEnv("my-env", "http://127.0.0.1:9", start_timeout_s=0.1)
    with pytest.raises(LostSessionError, match=r"no sandbox could be made at http://127\.0\.0\.1:9 for 0\.1 s"):
        env.reset()


def test_a_create_whose_answer_was_lost_leaves_no_second_sandbox():
    """It is looked for by the episode's id, killed, and made anew."""
    server = SandboxServer(faults={"create": [Fault(drop=True, done=True)]})
    with opened(server) as env:
        env.reset()
        assert (len(server.created), len(server.killed), list(server.sandboxes)) == (2, 1, [env.sandbox_id])


def test_an_environment_that_is_closed_while_its_sandbox_is_made_leaves_none():
    """The reset fails, and what came of it is killed."""
    server = SandboxServer(faults={"create": [Fault(delay_s=0.3)]})
    with opened(server) as env:
        threading.Timer(0.1, env.close).start()
        with pytest.raises(LostSessionError, match="was closed while it was being made"):
            env.reset()
        assert (server.killed, server.sandboxes) == (server.created, {})


def test_an_environment_that_is_closed_while_a_command_hangs_ends_it():
    """From another thread, as a run does that is called off."""
    server = SandboxServer({"hello": Said(hangs=True)})
    with opened(server) as env:
        env.reset()
        threading.Timer(0.1, env.close).start()
        assert isinstance(failure(env.step("run_command", {"command": "hello"})), RolloutError)
        assert server.sandboxes == {}


def test_a_setup_whose_connection_breaks_leaves_no_sandbox():
    """The reset fails, and the sandbox is killed."""
    server = SandboxServer({"hello": Said(drops=True)})
    with opened(server, setup_commands=["hello"]) as env:
        with pytest.raises(EnvError):
            env.reset()
        assert (env.sandbox_id, server.killed, server.sandboxes) == (None, server.created, {})


def test_a_kill_that_fails_once_is_tried_again():
    """And only the one."""
    server = SandboxServer(faults={"kill": [Fault(500)]})
    with opened(server) as env:
        env.reset()
        env.close()
        assert (server.killed, server.sandboxes) == (server.created, {})


def test_a_kill_that_fails_is_logged_with_the_sandbox_and_hides_no_error(caplog):
    """The reset's own error is the one that is raised; the sandbox counts as leaked until it is gone."""
    before = lost_leases()
    server = SandboxServer({"false": Said(exit_code=1)}, faults={"kill": [Fault(500)] * 3})
    with opened(server, setup_commands=["false"]) as env:
        with caplog.at_level(logging.WARNING), pytest.raises(EnvError, match="setup command 1 of 1 failed"):
            env.reset()
        (name,) = server.sandboxes
        assert f"sandbox {name} at {server.url} could not be killed" in caplog.text
        assert lost_leases() == before
        assert (server.killed, server.sandboxes) == ([name], {})


def test_a_sandbox_is_said_to_be_wanted_while_nobody_steps():
    """The model may think for longer than `sandbox_timeout`."""
    server = SandboxServer()
    with opened(server, sandbox_timeout=1) as env, SandboxServer() as other:
        env.reset()
        for _ in range(100):
            if server.beats >= 2:
                break
            threading.Event().wait(0.05)
        assert server.beats >= 2
        quiet = AgentEnv("my-env", other.url, sandbox_timeout=1, refresh_timeout=False)
        quiet.reset()
        threading.Event().wait(0.5)
        assert other.beats == 0
        quiet.close()


def test_heartbeats_outlive_an_answer_that_failed():
    """A server that restarts must not cost every sandbox its life."""
    server = SandboxServer(faults={"keep": [Fault(500), Fault(drop=True)]})
    with opened(server, sandbox_timeout=1) as env:
        env.reset()
        for _ in range(100):
            if server.beats >= 1:
                break
            threading.Event().wait(0.05)
        assert server.beats >= 1


def test_the_sandboxes_of_a_run_are_found_and_killed_by_its_name():
    """After a crash; those of other runs stay."""
    with SandboxServer() as server:
        envs = [AgentEnv("my-env", server.url, run_id=name) for name in ("run a/1 %", "run a/1 %", "other")]
        for env in envs:
            env.reset()
        assert sorted(AgentEnv.reap("run a/1 %", server.url)) == [env.sandbox_id for env in envs[:2]]
        assert list(server.sandboxes) == [envs[2].sandbox_id]
        assert AgentEnv.reap(api_url=server.url) == []
        for env in envs:
            env.close()


def test_reaping_on_a_server_that_leaves_the_filter_aside_kills_no_others():
    """Whatever is listed, only what carries the run's name is killed."""
    killed = []

    class Unfiltered(BaseHTTPRequestHandler):
        def do_GET(self):
            listed = [
                {
                    "sandboxID": name,
                    "templateID": "t",
                    "clientID": "c",
                    "envdVersion": "0.6.4",
                    "state": "running",
                    "startedAt": "2026-01-01T00:00:00Z",
                    "endAt": "2026-01-01T01:00:00Z",
                    "metadata": metadata,
                    "cpuCount": 1,
                    "memoryMB": 512,
                    "diskSizeMB": 256,
                }
                for name, metadata in {"ours": {"tiltyard_run": "mine"}, "theirs": {}}.items()
            ]
            body = json.dumps(listed).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_DELETE(self):
            killed.append(self.path.rpartition("/")[2])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *said):
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Unfiltered) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert AgentEnv.reap("mine", f"http://127.0.0.1:{server.server_port}") == ["ours"]
        finally:
            server.shutdown()
            thread.join()
    assert killed == ["ours"]


def test_the_command_line_reaps_too(capsys, monkeypatch):
    """Its server may come from the environment."""
    with SandboxServer() as server, AgentEnv("my-env", server.url, run_id="mine") as env:
        env.reset()
        monkeypatch.setenv("E2B_API_URL", server.url)
        assert main(["reap", "other"]) == 0
        assert main(["reap", "mine"]) == 0
        assert capsys.readouterr().out == (
            f"0 sandboxes were left\nkilled sandbox {env.sandbox_id}\n1 sandboxes were left\n"
        )
        assert server.sandboxes == {}
        monkeypatch.delenv("E2B_API_URL")
        assert main(["reap"]) == 2
        assert "E2B_API_URL" in capsys.readouterr().err


WITHOUT = """
import sys
sys.modules["e2b"] = None
from tiltyard import AgentEnv, MissingExtraError
try:
    AgentEnv("my-env", "http://127.0.0.1:9")
except MissingExtraError as error:
    print(error)
"""


def test_without_the_extra_it_is_named_when_the_environment_is_made():
    """Not at each episode's first reset."""
    said = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True).stdout
    assert "pip install 'tiltyard[sandbox]'" in said


DIES = """
import os, sys
from tiltyard import AgentEnv
env = AgentEnv("my-env", sys.argv[1])
env.reset()
os.kill(os.getpid(), 9)
"""

LEAVES = """
import sys
from tiltyard import AgentEnv
kept = [AgentEnv("my-env", sys.argv[1]) for _ in range(3)]
for env in kept:
    env.reset()
"""


def test_what_a_killed_process_left_is_found_without_a_name():
    """Its host and its process stand in the metadata; a living process keeps what it has."""
    with SandboxServer() as server, AgentEnv("my-env", server.url) as env:
        env.reset()
        subprocess.run([sys.executable, "-c", DIES, server.url], check=False)
        assert len(server.sandboxes) == 2
        (left,) = AgentEnv.reap(api_url=server.url)
        assert list(server.sandboxes) == [env.sandbox_id]
        assert left != env.sandbox_id


def test_a_process_that_ends_without_closing_leaves_no_sandbox():
    """What is held is killed at exit."""
    with SandboxServer() as server:
        subprocess.run([sys.executable, "-c", LEAVES, server.url], check=True, timeout=60)
        assert (len(server.created), server.sandboxes) == (3, {})


def test_an_environment_that_nobody_holds_any_more_gives_its_sandbox_back():
    """Forgetting to close is no leak."""
    with SandboxServer() as server:
        AgentEnv("my-env", server.url).reset()
        while server.sandboxes:
            threading.Event().wait(0.01)
        assert server.killed == server.created


def test_sandboxes_are_counted():
    """What the summary of a run says is counted, not assumed."""
    before = sandbox_report()
    with SandboxServer() as server:
        env = AgentEnv("my-env", server.url)
        env.reset()
        held = sandbox_report()
        env.close()
        after = sandbox_report()
    assert (held.acquired - before.acquired, held.leaked - before.leaked, after.leaked - before.leaked) == (1, 1, 0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_told_that_it_cannot_use_sandboxes():
    """The SDK's connections would hang there; and it must not kill what its parent works with."""
    with SandboxServer(SLOW_LINE) as server, AgentEnv("my-env", server.url) as env:
        env.reset()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            said = []
            for call in (env.reset, lambda: env.step("run_command", {"command": "hello"})):
                try:
                    call()
                except ConfigurationError as error:
                    said.append(str(error))
            env.close()
            os.write(write, "|".join(said).encode())
            os._exit(0)
        os.waitpid(child, 0)
        said = os.read(read, 10_000).decode().split("|")
        os.close(read)
        os.close(write)
        assert len(said) == 2
        assert all("was forked from it" in text and "'spawn'" in text for text in said)
        assert env.step("run_command", {"command": "hello"}).observation == "hello\n"


def test_neither_the_process_nor_its_environment_is_changed(monkeypatch):
    """Two environments of two servers do not meet, and children inherit no key."""
    monkeypatch.setenv("E2B_API_KEY", "other")
    before = dict(os.environ)
    with opened(SandboxServer(SLOW_LINE), api_key="mine") as one, opened(SandboxServer(SLOW_LINE)) as two:
        one.reset()
        two.reset()
        assert one.step("run_command", {"command": "hello"}).observation == "hello\n"
        assert two.step("run_command", {"command": "hello"}).observation == "hello\n"
    assert dict(os.environ) == before


def test_a_lost_sandbox_ends_a_rollout_as_lost_and_unscored():
    """The others go on, and none is scored 0."""
    lines = iter([Said("hello\n"), Said("hello\n"), Said("hel", lost=True)])
    server = SandboxServer(lambda line: next(lines, Said("hello\n")))

    def script(request, turn):
        return ToolCall("run_command", {"command": "hello"}) if turn < 2 else "done"

    with server, OpenAIServer(script) as model:
        rollout = APIMultiTurnRollout(
            OpenAI(model="m", base_url=model.base_url, api_key="k"),
            None,
            env_factory=lambda: AgentEnv("my-env", server.url),
            max_turns=4,
            concurrency=2,
            reward_fns={"said": lambda trajectory: 1.0},
        )
        results = rollout([{"messages": [{"role": "user", "content": "Say hello."}]} for _ in range(4)])
    endings = sorted((result["stop_reason"], result["reward"]) for result in results if result["reward"] is not None)
    lost = [result for result in results if result["reward"] is None]
    assert endings == [("stop", 1.0)] * 3
    assert [result["stop_reason"] for result in lost] == ["lost_session"]
    assert server.sandboxes == {}


def test_where_a_variable_sends_commands_is_not_where_another_server_gets_them(monkeypatch):
    """`E2B_SANDBOX_URL` belongs to the server that `E2B_API_URL` names; one that is given has its own."""
    monkeypatch.setenv("E2B_API_URL", "http://named:1")
    monkeypatch.setenv("E2B_SANDBOX_URL", "http://named:2")
    assert Place.of("t", None, None).data_url == "http://named:2"
    assert Place.of("t", "http://given:1", None).data_url == "http://given:1"
