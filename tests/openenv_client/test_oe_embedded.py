"""OpenEnv environments in this process, and how their classes are found."""

import sys

import pytest

from tiltyard import ConfigurationError, EnvError, EnvTool, EpisodeOverError, OpenEnv, Task, ToolError, as_turns
from tiltyard.envs.openenv.discovery import client_class, environment_class, refuse_overwritten

MODELS = """
from openenv.core.env_server.types import Action, Observation

class MoveAction(Action):
    to: str

class MoveObservation(Observation):
    board: str = ""
"""

SERVER = """
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State
from {package}.models import MoveAction, MoveObservation

class {name}(Environment):
    def __init__(self, size=3):
        self.size = size
        self.closed = 0

    def reset(self, seed=None, episode_id=None{more}):
        return MoveObservation(board=f"{{self.size}} {{seed}}", reward=None)

    def step(self, action, timeout_s=None, **kwargs):
        if action.to == "boom":
            raise RuntimeError("boom")
        reward = None if action.to == "nothing" else 0.5
        return MoveObservation(board=action.to, reward=reward, done=action.to == "end", metadata={{"answer": "secret"}})

    def close(self):
        self.closed += 1

    @property
    def state(self):
        return State()
"""


@pytest.fixture
def package(tmp_path, monkeypatch, request):
    """Write a package of the usual form; returns its name, which is the test's own."""
    name = f"oe_{request.node.name.partition('[')[0]}"[:60]
    folder = tmp_path / name
    (folder / "server").mkdir(parents=True)
    (folder / "__init__.py").write_text("from .models import MoveAction\n__all__ = ['MoveAction']\n")
    (folder / "models.py").write_text(MODELS)
    (folder / "server" / "__init__.py").write_text("")
    (folder / "server" / "any_name.py").write_text(SERVER.format(package=name, name="BoardThing", more=""))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def test_a_package_is_found_by_what_its_classes_are(package):
    """Neither the class nor its module is named after the package."""
    env = OpenEnv(env_name=package.name, env_kwargs={"size": 5})
    assert env.reset({"seed": 4}).observation == '{"board": "5 4"}'
    result = env.step("move", {"to": "left"})
    assert (result.observation, result.reward, result.done) == ('{"board": "left"}', 0.5, False)
    env.close()
    env.close()
    assert env.env.closed == 1


def test_rewards_add_up_and_none_is_not_zero(package):
    """`episode_reward` is the sum, not the last step's."""
    env = OpenEnv(env_name=package.name)
    env.reset()
    assert env.episode_reward is None
    rewards = [env.step("move", {"to": to}).reward for to in ("a", "nothing", "end")]
    assert (rewards, env.episode_reward) == ([0.5, None, 0.5], 1.0)
    with pytest.raises(EpisodeOverError):
        env.step("move", {"to": "a"})


def test_the_model_sees_neither_reward_nor_metadata(package):
    """T7: the answer is in there."""
    env = OpenEnv(env_name=package.name)
    env.reset()
    assert "secret" not in env.step("move", {"to": "a"}).observation


def test_it_has_one_generic_tool(package):
    """`tools()` is empty; the arguments are the action's fields."""
    env = OpenEnv(env_name=package.name)
    (tool,) = EnvTool.from_env(env)
    env.reset()
    assert tool("env_action", {"to": "right"}) == '{"board": "right"}'


def test_arguments_that_are_no_action_are_the_models_mistake(package):
    """And what the environment raises is the environment's."""
    env = OpenEnv(env_name=package.name)
    env.reset()
    with pytest.raises(ToolError, match=r"MoveAction: to: Field required; towards: Extra inputs"):
        env.step("move", {"towards": "left"})
    with pytest.raises(EnvError, match="boom"):
        env.step("move", {"to": "boom"})


def test_a_mapper_makes_the_action(package):
    """From the tool's name and arguments: fields or an action."""
    env = OpenEnv(env_name=package.name, action_mapper=lambda name, arguments: {"to": f"{name} {arguments}"})
    env.reset()
    assert env.step("jump", {}).observation == '{"board": "jump {}"}'


def test_a_row_that_nobody_takes_is_refused(package):
    """The seed and what `reset` names is passed; a row that it cannot know is an error."""
    env = OpenEnv(env_name=package.name)
    with pytest.raises(ConfigurationError, match="takes no row_index"):
        as_turns(env).start(Task(seed=1, row_index=3))
    assert env.reset({"seed": 1, "question": "?"}).observation == '{"board": "3 1"}'


def test_several_classes_are_listed(package):
    """T37: the first of the alphabet is not chosen."""
    (package / "server" / "other.py").write_text(SERVER.format(package=package.name, name="OtherThing", more=""))
    with pytest.raises(ConfigurationError, match=r"several environment classes; .*any_name:BoardThing, .*other:OtherT"):
        OpenEnv(env_name=package.name)
    assert (
        OpenEnv(env_cls=f"{package.name}.server.other:OtherThing").reset({"seed": 2}).observation == '{"board": "3 2"}'
    )


def test_a_broken_part_does_not_hide_the_others(package):
    """The package's own __init__ and a module of its server cannot be imported; the environment is found."""
    (package / "__init__.py").write_text("import no_such_module_of_ours\n")
    (package / "server" / "web.py").write_text("import no_such_web_of_ours\n")
    assert environment_class(package.name).__name__ == "BoardThing"
    assert package.name not in sys.modules


def test_what_is_broken_is_told_by_its_own_cause(package):
    """When nothing is found, and with what to do."""
    (package / "server" / "any_name.py").write_text("import no_such_engine_of_ours\n")
    with pytest.raises(ConfigurationError, match=r"any_name: .*no_such_engine_of_ours.*Give env_cls"):
        OpenEnv(env_name=package.name)


def test_the_scaffold_of_openenv_is_found(scaffolds, monkeypatch):
    """What `openenv init` writes: its environment and its client."""
    monkeypatch.syspath_prepend(str(scaffolds))
    env = OpenEnv(env_name="echo_env")
    env.reset()
    assert "hi" in env.step("echo", {"message": "hi"}).observation
    assert client_class("echo_env").__module__ == "echo_env.client"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one"),
        ({"env_name": "a", "env_cls": "b:C"}, "exactly one"),
        ({"env_name": "no_such_package_of_ours"}, "there is no package"),
        ({"env_cls": "collections:Ordereddict"}, "has no class 'Ordereddict'"),
        ({"env_name": 5}, "there is no package 5"),
        (
            {"env_cls": "openenv.core.generic_client:GenericEnvClient"},
            "is a client of servers",
        ),
        ({"base_url": "http://h", "tool_schema": []}, r"write OpenEnvClient\(base_url='http://h'"),
    ],
)
def test_what_cannot_be_found_is_told(options, message):
    """With what to give."""
    with pytest.raises(ConfigurationError, match=message):
        OpenEnv(**options)


def test_a_closed_environment_is_not_reset(package):
    """It would never be closed again."""
    env = OpenEnv(env_name=package.name)
    env.reset()
    env.close()
    env.close()
    with pytest.raises(EpisodeOverError, match=r"after close\(\): make a new OpenEnv of BoardThing"):
        env.reset()


def test_a_misspelt_argument_is_refused(package):
    """Ours as a TypeError, the environment's by name."""
    with pytest.raises(TypeError, match="env_kwarg"):
        OpenEnv(env_name=package.name, env_kwarg={})
    with pytest.raises(ConfigurationError, match=r"do not fit BoardThing: .*'sise'"):
        OpenEnv(env_name=package.name, env_kwargs={"sise": 3})


def test_openenv_core_beside_openenv_is_told_with_the_cure(tmp_path):
    """It overwrites the package; alone, or as `openenv`, it is fine."""
    for name in ("openenv", "openenv_core"):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    with pytest.raises(ConfigurationError, match="pip uninstall -y openenv-core"):
        refuse_overwritten([str(tmp_path)])
    refuse_overwritten()


MCP = """
from fastmcp import FastMCP
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.env_server.types import Observation, State

class Sums(MCPEnvironment):
    def __init__(self):
        server = FastMCP("sums")

        @server.tool
        def add(a: int, b: int) -> int:
            \"\"\"Add two integers.\"\"\"
            return a + b

        super().__init__(server)

    def reset(self, seed=None, episode_id=None, **kwargs):
        return Observation(metadata={"seed": seed})

    async def step_async(self, action, timeout_s=None, **kwargs):
        observation = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        if isinstance(action, CallToolAction):
            observation.reward, observation.done = 1.0, action.arguments.get("a") == 9
        return observation

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation()

    @property
    def state(self):
        return State()
"""


def test_an_mcp_environment_gives_its_real_tools(package):
    """Called as a server would call it, so that rewards are the same."""
    (package / "server" / "any_name.py").write_text(MCP)
    env = OpenEnv(env_name=package.name)
    env.reset({"seed": 1})
    assert [tool["function"]["name"] for tool in env.tools()] == ["add"]
    result = env.step("add", {"a": 2, "b": 3})
    assert (result.observation, result.reward, result.done) == ("5", 1.0, False)
    result = env.step("add", {"a": 9})
    assert result.observation.startswith("Error: ")
    assert (result.done, env.episode_reward) == (True, 2.0)
