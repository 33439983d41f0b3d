"""Tool calls against servers of the released openenv."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from openenv_servers import wait_until

from tiltyard import (
    ConfigurationError,
    EnvError,
    EnvTool,
    EpisodeOverError,
    LostSessionError,
    OpenEnvClient,
    StepResult,
    Task,
    ToolCall,
    ToolCrashError,
    ToolError,
    ToolManager,
    as_turns,
    resolve_env,
)
from tiltyard.types import Reply


def schema(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": parameters}}


def names(tools):
    return [tool["function"]["name"] for tool in tools]


GENERIC = "openenv.core.generic_client:GenericEnvClient"
SAY = schema("say", message={"type": "string"})


@pytest.fixture
def code(real_servers):
    """The coding environment, its action made of the tool's arguments."""
    client = OpenEnvClient(base_url=real_servers.url("code"), action_mapper=lambda _, arguments: arguments)
    yield client
    client.close()


@pytest.fixture
def odd(real_servers):
    """The environment that does what it is told."""
    client = OpenEnvClient(base_url=real_servers.url("odd"), action_mapper=lambda _, arguments: arguments, tools=[SAY])
    yield client
    client.close()


def test_the_default_tool_runs_python(code):
    """A terminal's text, the reward of the envelope, and the sum so far."""
    assert names(code.tools()) == ["run_python"]
    code.reset()
    result = code.step("run_python", {"code": "print(1 + 1)"})
    assert (result.observation, result.reward, result.done) == ("2\n", 1.0, False)
    assert result.info["episode_reward"] == 1.0
    assert result.info["raw_result"].observation["exit_code"] == 0


def test_execute_gives_the_servers_own_result(code):
    """For scoring in the same session; it is not the model's step and earns the episode nothing."""
    code.reset()
    code.step("run_python", {"code": "x = 5"})
    assert code.execute({"code": "print(x)"}).observation["stdout"] == "5\n"
    assert code.last_result.observation["exit_code"] == 0
    assert code.episode_reward == 1.0


def test_rewards_add_up_and_the_end_is_the_end(odd):
    """A new episode begins at nothing."""
    assert odd.reset({"seed": 7}).observation == "seed 7, options []"
    assert (odd.episode_reward, odd.last_result.done) == (None, False)
    odd.step("say", {"message": "a"})
    result = odd.step("say", {"message": "end"})
    assert (result.reward, result.done, odd.episode_reward) == (2.0, True, 2.5)
    with pytest.raises(EpisodeOverError, match="after the end"):
        odd.step("say", {"message": "b"})
    assert odd.execute({"message": "b"}).reward == 0.5
    odd.reset()
    assert odd.episode_reward is None


@pytest.mark.parametrize("message", ["unscored", "nan"])
def test_a_step_without_a_reward_is_unscored(odd, message):
    """The wire carries null for a NaN; neither is 0."""
    odd.reset()
    result = odd.step("say", {"message": message})
    assert (result.reward, odd.episode_reward) == (None, None)


def test_the_task_goes_along_with_the_reset(real_servers):
    """The seed, the fields of its row and `reset_kwargs`, which may be set for each episode."""
    client = OpenEnvClient(base_url=real_servers.url("odd"), reset_kwargs={"level": 3})
    task = {"messages": [], "seed": 4, "row_index": None, "evaluation": False, "question": "why"}
    assert client.reset(task).observation == "seed 4, options ['level', 'question']"
    client.reset_kwargs = {"level": 4, "hint": True}
    assert client.reset({"seed": 5}).observation == "seed 5, options ['hint', 'level']"
    client.close()


def test_arguments_that_the_server_refuses_are_the_models_mistake(odd):
    """The text names the field, and the episode goes on."""
    odd.reset()
    with pytest.raises(ToolError, match=r"seconds: .*valid number"):
        odd.step("say", {"message": "a", "seconds": "long"})
    with pytest.raises(ToolError, match=r"volume: .*not permitted"):
        odd.step("say", {"volume": 3})
    assert odd.step("say", {"message": "a"}).observation == "a 1"


def test_generic_actions_that_the_server_cannot_take_are_a_mistake_of_the_set_up(real_servers):
    """No model can mend them; the message says what the server takes and how to write it."""
    client = OpenEnvClient(base_url=real_servers.url("code"))
    client.reset()
    with pytest.raises(ConfigurationError, match=r"fields 'code'.*action_mapper"):
        client.step("run_python", {"code": "1"})
    client.close()


def test_an_environment_that_raises_fails_the_episode(odd):
    """With what it said."""
    odd.reset()
    with pytest.raises(EnvError, match="the environment broke"):
        odd.step("say", {"message": "raise"})


def test_steps_begin_with_a_reset(odd):
    """Nothing dials but a reset."""
    with pytest.raises(EpisodeOverError, match="before the first reset"):
        odd.step("say", {"message": "a"})
    with pytest.raises(LostSessionError, match="no session"):
        odd.execute({"message": "a"})


def test_a_registered_tool_runs_here_and_shadows_the_servers(odd):
    """Its text is the observation; it is a step of reward 0 that never ends."""
    given = []

    def keep(env, arguments):
        given.append((env, arguments))
        return "kept"

    assert odd.register_tool(SAY, keep).register_tool(schema("submit"), keep) is odd
    assert names(odd.tools()) == ["say", "submit"]
    odd.reset()
    result = odd.step("say", {"message": "mine"})
    assert (result.observation, result.reward, result.done) == ("kept", 0.0, False)
    assert given == [(odd, {"message": "mine"})]


def test_a_handler_that_acts_earns_what_its_acts_earned(odd):
    """T9: the reward and the end of `execute` are not lost."""
    odd.register_tool(schema("twice"), lambda env, _: str([env.execute({"message": m}).done for m in ("a", "end")]))
    odd.reset()
    result = odd.step("twice", {})
    assert (result.observation, result.reward, result.done) == ("[False, True]", 2.5, True)
    assert odd.episode_reward == 2.5


def test_a_handler_that_gives_back_what_execute_gave_shows_its_observation_only(odd):
    """Neither the reward nor the metadata, which may hold the answer, is in the text."""
    odd.register_tool(schema("submit"), lambda env, _: env.execute({"message": "end"}))
    odd.reset()
    result = odd.step("submit", {})
    assert (result.observation, result.reward, result.done) == ("over", 2.0, True)


def test_a_handler_that_cannot_be_called_is_refused_when_it_is_registered(odd):
    """Not in the middle of an episode."""
    with pytest.raises(ConfigurationError, match="handler must be a function, got 'submit'"):
        odd.register_tool(schema("submit"), "submit")


def test_what_is_sent_with_a_reset_may_be_taken_away_and_have_any_name(odd):
    """None is nothing; `self`, `what` and the like are columns as others are."""
    odd.reset_kwargs = None
    odd.reset()
    odd.reset_kwargs = {"what": 1, "call": 2, "error": 3}
    assert odd.reset({"seed": 4}).observation == "seed 4, options ['call', 'error', 'what']"


def test_a_handler_may_say_the_whole_result(odd):
    """Reward, end and info are its own."""
    odd.register_tool(schema("submit"), lambda env, _: StepResult("done", 3.0, done=True, info={"success": True}))
    odd.reset()
    result = odd.step("submit", {})
    assert (result.reward, result.done, result.info["success"], odd.episode_reward) == (3.0, True, True, 3.0)


def test_a_handler_that_crashes_fails_the_episode_and_one_that_objects_does_not(odd):
    """`ToolError` is for the model."""

    def broken(env, arguments):
        raise arguments["error"]

    odd.register_tool(schema("break"), broken)
    odd.reset()
    with pytest.raises(ToolError, match="try again"):
        odd.step("break", {"error": ToolError("try again")})
    with pytest.raises(ToolCrashError, match="KeyError"):
        odd.step("break", {"error": KeyError("x")})


def test_an_mcp_environment_gives_its_real_tools(real_servers):
    """They are listed and called by actions, so that rewards and the end stay right."""
    client = OpenEnvClient(base_url=real_servers.url("tools"))
    client.reset({"seed": 1})
    assert names(client.tools()) == ["add", "fail", "submit"]
    assert client.tools()[0]["function"]["parameters"]["required"] == ["a", "b"]
    result = client.step("add", {"a": 2, "b": 3})
    assert (result.observation, result.reward) == ("5", 1.0)
    result = client.step("fail", {"why": "on purpose"})
    assert (result.observation, result.reward, result.done) == (result.observation, 0.0, False)
    assert "on purpose" in result.observation
    assert result.observation.startswith("Error: ")
    result = client.step("submit", {"total": 5})
    assert (result.observation, result.reward, result.done, client.episode_reward) == ("right", 1.0, True, 2.0)
    client.close()


def test_an_mcp_environment_plays_through_the_loop(real_servers):
    """Schemas reach the model's prompt and its calls the server."""
    client = OpenEnvClient(base_url=real_servers.url("tools"))
    turns = as_turns(client)
    turns.start(Task(seed=1))
    assert names(turns.tools()) == ["add", "fail", "submit"]
    turn = turns.reply(Reply("", (ToolCall("add", {"a": 2, "b": 3}, "1"), ToolCall("submit", {"total": 5}, "2"))))
    assert [message["content"] for message in turn.messages] == ["5", "right"]
    assert (turn.reward, turn.done) == (2.0, True)
    turns.close()


def test_a_typed_client_gives_typed_results(real_servers, scaffolds, monkeypatch):
    """By the methods of the package's own client, over a session that never reconnects."""
    monkeypatch.syspath_prepend(str(scaffolds))
    client = OpenEnvClient(env_name="echo_env", base_url=real_servers.url("echo"))
    client.reset()
    result = client.step("echo", {"message": "hello"})
    assert type(client.last_result.observation).__name__ == "EchoObservation"
    assert "hello" in result.observation
    from echo_env import EchoAction  # noqa: PLC0415 - on the path since a moment

    assert client.execute(EchoAction(message="raw")).observation.echoed_message == "raw"
    assert client.client.state().step_count == 2
    client.close()


def test_two_tools_that_would_be_the_same_action_are_refused(scaffolds, monkeypatch):
    """T8: an action without its tool's name must be made by who knows."""
    monkeypatch.syspath_prepend(str(scaffolds))
    tools = [SAY, schema("shout", message={"type": "string"})]
    with pytest.raises(ConfigurationError, match="does not say which of the tools say, shout"):
        OpenEnvClient(env_name="echo_env", base_url="http://host", tools=tools)


def test_all_tools_of_one_client_share_its_episode(odd):
    """`EnvTool.from_env` and a manager, as in every environment."""
    manager = ToolManager(EnvTool.from_env(odd))
    odd.reset()
    assert manager(ToolCall("say", {"message": "hello"})) == "hello 1"
    assert manager(ToolCall("say", {"message": 3})).startswith("Error: ")


def test_clients_work_in_a_thread_pool(real_servers):
    """One each, as many as there are threads."""

    def play(number):
        client = OpenEnvClient(base_url=real_servers.url("odd"), action_mapper=lambda _, arguments: arguments)
        client.reset({"seed": number})
        texts = [client.step("say", {"message": f"{number}"}).observation for _ in range(3)]
        client.close()
        return texts

    with ThreadPoolExecutor(16) as pool:
        played = list(pool.map(play, range(32)))
    assert played == [[f"{number} {turn}" for turn in (1, 2, 3)] for number in range(32)]
    wait_until(lambda: real_servers.active("odd") == 0, what="an empty server")


def test_the_url_may_come_from_the_environment(monkeypatch):
    """OPENENV_BASE_URL; making a client dials nothing."""
    monkeypatch.setenv("OPENENV_BASE_URL", "https://h.example/code")
    assert OpenEnvClient().base_url == "wss://h.example/code/ws"
    monkeypatch.delenv("OPENENV_BASE_URL")
    with pytest.raises(ConfigurationError, match="OPENENV_BASE_URL"):
        OpenEnvClient()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env_name": "a", "env_cls": "b:C"}, "not both"),
        ({"env_name": "no_such_package_of_ours"}, "there is no package 'no_such_package_of_ours'"),
        ({"env_cls": "no_such_module_of_ours:Client"}, "cannot be imported"),
        ({"env_cls": "Client"}, "'module:Class'"),
        ({"env_cls": "collections:OrderedDict"}, "is no OpenEnv client"),
        ({"client_kwargs": {"timeout": 3}}, r"takes headers, max_message_size_mb, got \['timeout'\]"),
        ({"client_kwargs": {"headers": "X: y"}}, r"client_kwargs\['headers'\] must be a dict, got 'X: y'"),
        ({"client_kwargs": {"max_message_size_mb": "5"}}, r"'max_message_size_mb'\] must be a number > 0, got '5'"),
        (
            {"env_cls": GENERIC, "client_kwargs": {"nope": 1}},
            "client_kwargs do not fit .*'nope'",
        ),
        ({"action_mapper": "map"}, "action_mapper must be a function, got 'map'"),
        ({"tools": "run"}, "a tool schema must be"),
        ({"env_name": 5}, "there is no package 5"),
        ({"message_timeout_s": 0}, "message_timeout_s must be a number > 0, got 0"),
        ({"base_url": "ftp://h"}, "base_url must begin with"),
    ],
)
def test_what_cannot_work_is_told_at_construction(options, message):
    """Before anything is dialled."""
    with pytest.raises(ConfigurationError, match=message):
        OpenEnvClient(**{"base_url": "http://127.0.0.1:9", **options})


def test_close_may_be_called_twice_and_before_anything(odd):
    """And a step after it is refused."""
    OpenEnvClient(base_url="http://127.0.0.1:9").close()
    odd.reset()
    odd.close()
    odd.close()
    with pytest.raises(EpisodeOverError, match="close"):
        odd.step("say", {"message": "a"})


def test_the_client_of_an_mcp_package_calls_its_tools(real_servers):
    """openenv's own client of tools, as `env_cls`: typed observations, rewards intact."""
    client = OpenEnvClient(env_cls="openenv.core.mcp_client:MCPToolClient", base_url=real_servers.url("tools"))
    client.reset()
    assert names(client.tools()) == ["add", "fail", "submit"]
    result = client.step("add", {"a": 2, "b": 3})
    assert (result.observation, result.reward) == ("5", 1.0)
    assert type(client.last_result.observation).__name__ == "CallToolObservation"
    client.close()


GUESS = """
class Guess:
    def reset(self, seed=None):
        return f"guess {seed}", {}

    def step(self, action):
        return "no", 0.0, False, False, {}
"""


def test_reset_arguments_that_nobody_takes_are_told(tmp_path):
    """Where the server says so, as those of Tiltyard do: what was asked for is not silently left out."""
    (tmp_path / "guess.py").write_text(GUESS)
    url, server = resolve_env(f"{tmp_path}/guess.py:Guess")
    client = OpenEnvClient(base_url=url, action_mapper=lambda _, arguments: arguments, reset_kwargs={"level": 3})
    with pytest.raises(
        ConfigurationError, match=r"refused reset_kwargs or a field of the task's row: level: .*takes seed"
    ):
        client.reset({"seed": 1})
    client.reset_kwargs.clear()
    assert client.reset({"seed": 1}).observation == "guess 1"
    client.close()
    server.stop()
