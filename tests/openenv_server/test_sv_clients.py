"""Who drives our server: the official clients, our own, and training."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from openenv_servers import free_port, get_json, wait_until
from served_envs import Guess, Sum

from tiltyard import (
    InProcessEnvClient,
    Limits,
    OpenEnvClient,
    RemoteEnvClient,
    RolloutCollector,
    RolloutHarness,
    TaskAssigner,
    ToolError,
    ToolManager,
    make_renderer,
    resolve_env,
)
from tiltyard.envs.openenv.held import session_report
from tiltyard.envs.tool import EnvTool
from tiltyard.rollout.outcome import Ending
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens
from tiltyard.types import ToolCall

HERE = Path(__file__).parent


def official(url, kind, *rest):
    """What the official client saw."""
    pytest.importorskip("openenv")
    command = [sys.executable, str(HERE / "official_player.py"), url, kind, *map(str, rest)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Served:
    """`tiltyard serve` as a user starts it, on a port that stays the same."""

    def __init__(self, folder, spec, *options):
        self.port = free_port()
        self.command = [sys.executable, "-m", "tiltyard", "serve", spec, "--port", str(self.port), *options]
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True, cwd=self.folder)
        assert self.process.stdout.readline().startswith("serving")

    def active(self):
        return get_json(f"{self.url}/health")["active_sessions"]

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        said = self.process.communicate(timeout=20)[0]
        return said.strip()


@pytest.fixture
def served(tmp_path):
    """Start `tiltyard serve`; what is left is killed."""
    started = []

    def start(spec, *options):
        started.append(Served(tmp_path, spec, *options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()


def test_the_official_client_plays_an_episode_that_tiltyard_serve_hosts(served):
    """A text environment that knows nothing of OpenEnv, behind the command, and openenv's own client."""
    server = served(f"{HERE / 'served_envs.py'}:Guess")
    assert official(server.url, "guess") == {
        "opened": "training row None: guess a number from 1 to 9",
        "answers": [["lower", 0.0, False], ["right", 1.0, True]],
        "steps": 2,
    }
    assert official(server.url, "many") == [1.0] * 16
    assert server.stop().endswith("sessions, leaked=0")


def test_the_official_client_sees_typed_errors(serve):
    """Codes and texts pass through it; the capacity numbers are in the text."""
    url, _ = serve("Guess", max_concurrent_envs=1)
    assert "VALIDATION_ERROR" in official(url, "refused")[0]
    told = official(url, "full")
    assert "1/1 sessions active" in told
    assert "CAPACITY_REACHED" in told


def test_an_openenv_environment_is_served_as_its_own_server_would(serve, scaffolds, monkeypatch):
    """The package that `openenv init` wrote, its class behind our server, its typed client on the other side."""
    monkeypatch.syspath_prepend(str(scaffolds))
    monkeypatch.setitem(sys.modules, "gradio", None)
    url, _ = serve("echo_env.server.echo_env_environment:EchoEnvironment")
    assert official(url, "typed", scaffolds) == ["Echo Env environment ready!", "hi", 0.2, 1]
    assert get_json(f"{url}/schema")["action"]["title"] == "EchoAction"


def test_an_mcp_environment_and_one_without_concurrency(serve, monkeypatch):
    """An MCP session of its own for each; no more than one session where the class declares no concurrency."""
    pytest.importorskip("openenv")
    monkeypatch.setitem(sys.modules, "gradio", None)
    host = HERE.parent / "openenv_real" / "host.py"
    url, _ = serve(f"{host}:ToolsEnvironment")
    assert official(url, "tools") == [["add", "fail", "submit"], 5, 1.0, "execution_error"]
    _, single = serve(f"{host}:SingleEnvironment")
    assert single.max_sessions == 1
    with pytest.raises(ValueError, match="does not declare concurrent sessions"):
        resolve_env(f"{host}:SingleEnvironment", max_concurrent_envs=2)


def test_a_text_environment_is_the_same_behind_a_url(serve):
    """Payloads, rewards, ends, infos and mistakes of the model: nothing of them changes on the way."""
    url, _ = serve("Guess")
    here, there = InProcessEnvClient(Guess()), RemoteEnvClient(url)
    assert (there.dataset_size, there.evaluation_size, there.max_turns) == (6, 2, 3)

    def play(client, actions):
        told = [client.reset(seed=4, row_index=2, evaluation=True)]
        for action in actions:
            try:
                told.append(client.step(action))
            except ToolError as error:
                told.append(str(error))
        return told

    for actions in (["1", "seven", "5"], ["1", "2", "3"]):
        assert play(there, actions) == play(here, actions)
    here.close(), there.close()


def test_tools_are_the_same_behind_a_url(serve):
    """The model sees the same tools and texts; a refused call earns nothing on either side."""
    url, _ = serve("Sum")
    with Sum() as here, OpenEnvClient(base_url=url) as there:
        played = []
        for env in (here, there):
            told = [env.reset({"goal": 4}).observation, env.tools()]
            manager = ToolManager(EnvTool.from_schemas(env, env.tools()))
            for arguments in ({"number": "x"}, {"number": -1}, {"number": 1}, {"number": 3}):
                result = manager.step(ToolCall("add", arguments))
                told.append((result.observation, result.reward, result.done, "tool_error" in result.info))
            played.append(told)
    assert played[1] == played[0]


def test_the_sample_of_an_already_running_server(tmp_path, monkeypatch):
    """The reference's `resolve_env` and `RemoteEnvClient`, with another import line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "guess_env.py").write_text((HERE.parent / "rollout" / "rollout_envs.py").read_text())
    url, server = resolve_env(
        "guess_env.py:GuessEnv",
        env_config={"target": 7},
        max_concurrent_envs=8,
    )
    client = RemoteEnvClient(url)
    payload, _ = client.reset()
    assert payload == "Guess a number between 1 and 10."
    payload, reward, terminated, truncated, info = client.step("5")
    assert (payload, reward, terminated, truncated, info) == ("Too low.", 0.0, False, False, {})
    client.close()
    server.stop()


def test_the_harness_plays_a_url_with_rows_and_splits(serve):
    """`eval_mode` and `row_index` reach the environment; its tools and rows are known here."""
    url, _ = serve("Guess")
    tokenizer = byte_tokenizer()
    with RolloutHarness.from_spec(url, None, tokenizer, 3) as harness:
        assert harness.dataset_size == 6
        with harness.eval_mode():
            assert harness.dataset_size == 2
            prompt = tokenizer.decode(harness.reset(seed=1, row_index=1))
    assert "held-out row 1" in prompt


def test_training_behind_our_server_is_training_in_process(
    serve, write_manifest, train, read_lines, tmp_path, monkeypatch
):
    """Rows, held-out rows, rewards and tokens: the same trajectories, seed for seed."""
    path = write_manifest()
    monkeypatch.chdir(tmp_path)
    url, server = serve("env.py:Env", workers=2, max_concurrent_envs=8)
    played = []
    for name, source in (("here", "entrypoint: 'env.py:Env'"), ("there", f"env_url: '{url}'")):
        environment = f"{{env_type: rollout, {source}, max_turns: 3}}"
        # What is sampled together decides the last digits of the logits, so each batch waits for every episode.
        path = write_manifest(environment=environment, rollout="{max_tokens_per_turn: 32, linger_s: 30}")
        summary = train(path, tmp_path / name)
        assert (summary["leaked"], summary["steps_done"]) == (0, 3)
        lines = read_lines(tmp_path / name / "trajectories.jsonl")
        kept = [{key: line[key] for key in line if key not in ("started_at", "seconds", "timings")} for line in lines]
        played.append(sorted(kept, key=lambda line: (line["phase"], line["episode_id"])))
    logprobs = [[value for line in lines for value in line.pop("logprobs") if value is not None] for lines in played]
    assert played[1] == played[0]
    # Which sequences share a pass of the model decides the last digits.
    assert logprobs[1] == pytest.approx(logprobs[0], abs=1e-4)
    wait_until(lambda: server.active_sessions == 0, what="an empty server")


def test_a_server_killed_in_the_middle_of_64_episodes(served):
    """All are accounted for and none is scored 0; training goes on when it is back, and nothing leaks anywhere."""
    server = served(f"{HERE / 'served_envs.py'}:Waits")
    tokenizer = byte_tokenizer()
    held = session_report().leaked
    policy = ScriptedTokens(tokenizer, ["sleep 300", "stop"])

    def kill_when_all_play():
        try:
            wait_until(lambda: sum(map(len, policy.requests)) == 64, 240.0, "64 episodes that were reset")
        finally:
            server.kill()

    killing = threading.Thread(target=kill_when_all_play)
    killing.start()
    with RolloutCollector(
        lambda: RemoteEnvClient(server.url, connect_timeout_s=120.0),
        8,
        8,
        policy=policy,
        renderer=make_renderer(tokenizer),
        limits=Limits(max_turns=2, step_timeout_s=300.0),
        assigner=TaskAssigner(None, 8),
    ) as source:
        first = [member for group in source.collect() for member in group.members]
        killing.join()
        assert len(first) == 64
        assert {(member.ending, member.reward) for member in first} == {(Ending.LOST_SESSION, None)}
        server.start()
        policy.scripts = ["on", "on"]
        second = [member for group in source.collect() for member in group.members]
    assert {member.ending for member in second} == {Ending.MAX_TURNS}
    assert (source.leaked, session_report().leaked) == (0, held)
    wait_until(lambda: server.active() == 0, what="an empty server")
    assert server.stop() == "stopped: 64 sessions, leaked=0"


def test_a_client_process_that_is_killed_leaves_nothing_on_the_server(serve):
    """SIGKILL in the middle of sixteen episodes: the server's count is back to zero."""
    url, server = serve("Told")
    code = (
        "import sys, threading; from tiltyard import RemoteEnvClient\n"
        "def play():\n"
        "    client = RemoteEnvClient(sys.argv[1]); client.reset(); client.step('sleep 1')\n"
        "[threading.Thread(target=play).start() for _ in range(16)]\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, url])
    wait_until(lambda: server.active_sessions == 16, 30.0, "16 sessions")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: server.active_sessions == 0, what="an empty server")
