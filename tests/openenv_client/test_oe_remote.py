"""Text environments behind a URL: the client, the harness, and training."""

import threading

import pytest
from openenv_servers import RealServers, wait_until

from tiltyard import (
    ConfigurationError,
    Env,
    EnvError,
    EnvTimeoutError,
    EpisodeOverError,
    Limits,
    LostSessionError,
    ManifestError,
    RemoteEnvClient,
    RolloutCollector,
    RolloutHarness,
    ServerFullError,
    StepResult,
    TaskAssigner,
    ToolError,
    load_manifest,
    make_renderer,
    resolve_env,
)
from tiltyard.build import env_factory, probe
from tiltyard.envs.openenv.held import session_report
from tiltyard.rollout.outcome import Ending
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens

TOKENIZER = byte_tokenizer()
RENDERER = make_renderer(TOKENIZER)
END = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
WAITS = ["hang", "end"]

TWIN = '''
"""What the real server's `odd` does, as a text environment of this process."""

class Odd:
    def reset(self, seed=None, evaluation=False):
        self.steps = 0
        return f"seed {seed}, options {['evaluation'] if evaluation else []}", {}

    def step(self, action):
        self.steps += 1
        if action == "end":
            return "over", 2.0, True, False, {"answer": 42}
        return f"{action} {self.steps}", 0.5, False, False, {}
'''


@pytest.fixture
def odd(real_servers):
    """A client of the environment that does what it is told."""
    client = RemoteEnvClient(real_servers.url("odd"))
    yield client
    client.close()


def test_an_episode_as_of_any_text_environment(odd):
    """Payloads as they came, reward and end from the envelope."""
    payload, info = odd.reset(seed=3)
    assert (payload["text"], info) == ("seed 3, options []", {})
    payload, reward, terminated, truncated, info = odd.step("hello")
    assert (payload["text"], reward, terminated, truncated, info) == ("hello 1", 0.5, False, False, {})
    _, reward, terminated, _, info = odd.step("end")
    assert (reward, terminated, info) == (2.0, True, {"answer": 42})
    with pytest.raises(EpisodeOverError, match="after the end"):
        odd.step("more")


def test_what_the_server_does_not_say_is_not_there(odd):
    """Servers of openenv know no rows, prompts or tools of a text environment."""
    assert (odd.dataset_size, odd.evaluation_size, odd.system_prompt, odd.max_turns) == (None, None, None, None)
    assert (list(odd.tools), list(odd.examples)) == ([], [])


def test_a_reset_that_is_not_scored_stays_unscored(odd):
    """Null is no reward, and not 0."""
    odd.reset()
    assert odd.step("unscored")[1] is None
    assert odd.step("nan")[1] is None


def test_a_reward_that_is_no_number_fails_the_episode(strange):
    """Servers in other languages may write NaN."""
    client = RemoteEnvClient(strange)
    client.reset()
    with pytest.raises(EnvError, match="reward nan"):
        client.step("nan")
    with pytest.raises(EpisodeOverError, match="failed"):
        client.step("x")
    client.close()


def test_an_observation_may_be_text(strange):
    """Whatever came is the payload."""
    client = RemoteEnvClient(strange)
    client.reset()
    assert client.step("plain text")[:3] == ("just text", 1.0, False)
    client.close()


def test_an_unknown_action_field_is_told_with_those_there_are(real_servers):
    """No model can mend it."""
    client = RemoteEnvClient(real_servers.url("code"))
    client.reset()
    with pytest.raises(
        ConfigurationError, match=r"takes no action \{'message': text\}.*fields 'code'\. Set action_fie"
    ):
        client.step("print(1)")
    client.close()
    client = RemoteEnvClient(real_servers.url("code"), action_field="code")
    client.reset()
    assert client.step("print(1)")[0]["stdout"] == "1\n"
    client.close()


def test_a_text_to_an_environment_of_tools_is_told_which_option_there_is():
    """No field takes a text; a tool may."""

    class Tools(Env):
        def step(self, tool_name, arguments):
            return StepResult(tool_name)

    url, server = resolve_env(Tools)
    with server:
        client = RemoteEnvClient(url)
        client.reset()
        with pytest.raises(ConfigurationError, match="calls of tools: give mcp_tool"):
            client.step("hello")
        client.close()


@pytest.mark.parametrize("given", [-1, "5", float("nan")])
def test_a_bound_that_is_none_is_told_by_its_own_name(given):
    """As the caller wrote it."""
    with pytest.raises(ConfigurationError, match="request_timeout_s must be a number >= 0, got"):
        RemoteEnvClient("http://127.0.0.1:9", request_timeout_s=given)


def test_a_text_that_the_field_does_not_take_is_the_models_mistake(real_servers):
    """The field is right; what is in it is not."""
    client = RemoteEnvClient(real_servers.url("odd"), action_field="seconds")
    client.reset()
    with pytest.raises(ToolError, match="refused the action: seconds: "):
        client.step("very long")
    assert client.step("0")[0]["text"] == " 1"
    client.close()


def test_a_text_may_be_given_to_an_mcp_tool(real_servers):
    """The tool's only argument takes it."""
    client = RemoteEnvClient(real_servers.url("tools"), mcp_tool="fail")
    client.reset()
    payload, reward, *_ = client.step("on purpose")
    assert ("on purpose" in payload, reward) == (True, 0.0)
    client.close()


@pytest.mark.parametrize(
    ("tool", "message"),
    [("sub", "has no such tool; it has add, fail, submit"), ("add", r"takes the arguments 'a', 'b'; set action_field")],
)
def test_an_mcp_tool_that_cannot_take_the_text_is_told(real_servers, tool, message):
    """At the first reset."""
    client = RemoteEnvClient(real_servers.url("tools"), mcp_tool=tool)
    with pytest.raises(ConfigurationError, match=message):
        client.reset()
    client.close()


def test_a_step_that_hangs_ends_in_time_and_can_be_closed(real_servers):
    """The bound is the client's, and the server is not asked for leave."""
    client = RemoteEnvClient(real_servers.url("odd"), request_timeout_s=1.5, action_field="seconds")
    client.reset()
    with pytest.raises(EnvTimeoutError):
        client.step("3")
    client.reset()
    client.close()
    client.close()
    with pytest.raises(EpisodeOverError, match="close"):
        client.reset()


def test_a_harness_plays_a_url(real_servers):
    """Token ids in and out; the field of the observation is named."""
    harness = RolloutHarness(real_servers.url("odd"), TOKENIZER, 4, renderer=RENDERER, observation_field="text")
    prompt = harness.reset(seed=5)
    assert "seed 5, options []" in TOKENIZER.decode(prompt)
    prompt, reward, terminated, _, _ = harness.step([*TOKENIZER.encode("hello"), END])
    assert ("hello 1" in TOKENIZER.decode(prompt), reward, terminated) == (True, 0.5, False)
    harness.step([*TOKENIZER.encode("end"), END])
    assert harness.get_episode_data().reward == 2.5
    harness.close()
    wait_until(lambda: real_servers.active("odd") == 0, what="an empty server")


def test_an_observation_processor_is_named(real_servers, tmp_path):
    """`path.py:fn`, or the function itself."""
    (tmp_path / "shown.py").write_text("def loud(payload):\n    return payload['text'].upper()\n")
    for processor in (f"{tmp_path}/shown.py:loud", lambda payload: payload["text"].upper()):
        harness = RolloutHarness.from_spec(
            real_servers.url("odd"), None, TOKENIZER, 2, renderer=RENDERER, observation_processor=processor
        )
        assert "SEED 6" in TOKENIZER.decode(harness.reset(seed=6))
        harness.close()


def test_a_harness_bounds_each_call(real_servers):
    """`request_timeout_s`; the failed episode is kept."""
    harness = RolloutHarness(
        real_servers.url("odd"), TOKENIZER, renderer=RENDERER, request_timeout_s=1.5, action_field="seconds"
    )
    harness.reset()
    with pytest.raises(EnvTimeoutError):
        harness.step([*TOKENIZER.encode("3"), END])
    assert (harness.get_episode_data().ending, harness.get_episode_data().reward) == (Ending.ENV_ERROR, None)
    harness.close()


def collector(url, batch_size, group_size, script, *, step_timeout_s=60.0, **bounds):
    return RolloutCollector(
        lambda: RemoteEnvClient(url, **bounds),
        batch_size,
        group_size,
        policy=ScriptedTokens(TOKENIZER, script),
        renderer=RENDERER,
        limits=Limits(max_turns=4, step_timeout_s=step_timeout_s),
        assigner=TaskAssigner(None, batch_size),
    )


def test_groups_play_behind_a_url_and_leave_nothing_there(real_servers):
    """Members share their task; all sessions are given back."""
    with collector(real_servers.url("odd"), 2, 4, ["a", "b", "end"]) as source:
        for group in source.collect():
            assert {member.reward for member in group.members} == {3.0}
            assert len({member.first_observation for member in group.members}) == 1
    wait_until(lambda: real_servers.active("odd") == 0, what="an empty server")
    assert source.leaked == 0


def test_a_server_that_dies_costs_its_episodes_and_training_goes_on(scaffolds):
    """64 episodes: all accounted for, none scored 0; with the server back, the next batch plays."""
    servers = RealServers(scaffolds)
    held = session_report().leaked

    def kill_when_all_play():
        asked = source._rollout.policy.requests
        try:
            wait_until(lambda: sum(map(len, asked)) == 64, 240.0, "64 episodes that were reset")
        finally:
            servers.kill()

    with collector(servers.url("odd"), 8, 8, WAITS, step_timeout_s=300.0, connect_timeout_s=120.0) as source:
        killing = threading.Thread(target=kill_when_all_play)
        killing.start()
        first = [member for group in source.collect() for member in group.members]
        killing.join()
        assert len(first) == 64
        assert {(member.ending, member.reward) for member in first} == {(Ending.LOST_SESSION, None)}
        servers.start()
        source._rollout.policy.scripts = ["a", "end"]
        source._rollout.policy._turns.clear()
        second = [member for group in source.collect() for member in group.members]
    assert {(member.ending, member.reward) for member in second} == {(Ending.DONE, 2.5)}
    wait_until(lambda: servers.active("odd") == 0, 60.0, what="an empty server")
    assert (source.leaked, session_report().leaked) == (0, held)
    servers.kill()


def test_a_server_with_too_few_sessions_is_told_at_the_start(real_servers):
    """OE-04 c: with both numbers, and no deadlock."""
    held = [RemoteEnvClient(real_servers.url("pair")) for _ in range(2)]
    for client in held:
        client.reset()
    with pytest.raises(ServerFullError, match="2/2 sessions active"):
        RemoteEnvClient(real_servers.url("pair"), capacity_timeout_s=0.1).reset()
    for client in held:
        client.close()


def test_training_behind_a_url_is_training_in_process(real_servers, write_manifest, train, read_lines, tmp_path):
    """The same trajectories, seed for seed, token for token.

    What is sampled together decides the last digits of the logits, so each batch waits for every episode.
    """
    environments = {
        "here": "{env_type: rollout, entrypoint: 'env.py:Odd', max_turns: 2}",
        "there": f"{{env_type: rollout, env_url: '{real_servers.url('odd')}', max_turns: 2}}",
    }
    played = {}
    for name, environment in environments.items():
        path = write_manifest(TWIN, environment=environment, rollout="{max_tokens_per_turn: 32, linger_s: 30}")
        summary = train(path, tmp_path / name)
        assert (summary["leaked"], summary["steps_done"]) == (0, 3)
        lines = read_lines(tmp_path / name / "trajectories.jsonl")
        for line in lines:
            for key in ("started_at", "seconds", "timings"):
                line.pop(key, None)
        played[name] = sorted(lines, key=lambda line: (line["phase"], line["episode_id"]))
    assert played["there"] == played["here"]
    wait_until(lambda: real_servers.active("odd") == 0, what="an empty server")


def test_a_manifest_with_a_server_that_is_not_there_is_told(write_manifest):
    """By its key, before the model is loaded."""
    path = write_manifest(environment="{env_type: rollout, env_url: 'https://127.0.0.1:9', max_turns: 2}")
    section = load_manifest(path).environment
    section = section.model_copy(update={"env_url": "http://no.such.host.of.ours.invalid"})
    with pytest.raises(ManifestError, match="its host is not known"):
        probe(section, env_factory(section))


def test_a_lost_session_is_not_hidden(strange):
    """The client of a text environment does not reconnect either."""
    client = RemoteEnvClient(strange)
    client.reset()
    with pytest.raises(LostSessionError):
        client.step("restart")
    with pytest.raises(EpisodeOverError):
        client.step("again")
    client.reset()
    assert client.step("here")[0] == {"message": "here"}
    client.close()
