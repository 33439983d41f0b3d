"""The code samples of the reference that need `openenv`, with only the import line and the URL changed.

`tests/reference/README.md` lists all samples of all texts; most are tested beside it.
"""

import os
import subprocess
import sys

import pytest
from openenv_servers import free_port, get_json, wait_until

from tiltyard import (
    APIMultiTurnRollout,
    EnvTool,
    OpenAI,
    OpenEnv,
    OpenEnvClient,
    RolloutHarness,
    ToolCall,
    ToolManager,
    make_renderer,
)
from tiltyard.testing.openai_server import OpenAIServer
from tiltyard.testing.tokenizer import byte_tokenizer

GAME = """
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

class CardAction(Action):
    action: str

class CardObservation(Observation):
    message: str = ""

class CardEnvironment(Environment):
    def __init__(self, game_name):
        self.game_name = game_name

    def reset(self, seed=None, episode_id=None, **kwargs):
        return CardObservation(message=f"{self.game_name}: your hand is 15")

    def step(self, action, timeout_s=None, **kwargs):
        return CardObservation(message=action.action, reward=1.0, done=action.action == "stand")

    @property
    def state(self):
        return State()
"""


@pytest.fixture
def openspiel_env(tmp_path, monkeypatch):
    """A package of the sample's name."""
    (tmp_path / "openspiel_env" / "server").mkdir(parents=True)
    (tmp_path / "openspiel_env" / "server" / "game.py").write_text(GAME)
    (tmp_path / "openspiel_env" / "__init__.py").write_text(
        "from .server.game import CardAction\n__all__ = ['CardAction']\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("openspiel_env")
def test_mode_1_embedded_openenv():
    """ "Mode 1: Embedded OpenEnv"."""
    env = OpenEnv(
        env_name="openspiel_env",
        env_kwargs={"game_name": "blackjack"},
    )
    result = env.reset()
    assert result.observation == "blackjack: your hand is 15"
    result = env.step("play", {"action": "hit"})
    assert (result.observation, result.reward) == ("hit", 1.0)
    assert [tool.tool_info()["function"]["name"] for tool in EnvTool.from_env(env)] == ["env_action"]


@pytest.fixture
def coding_env(tmp_path, monkeypatch):
    """A package of the sample's name: the client of a coding environment."""
    (tmp_path / "coding_env").mkdir()
    (tmp_path / "coding_env" / "__init__.py").write_text(
        "from .client import CodeAction, CodingEnv\n__all__ = ['CodingEnv', 'CodeAction']\n"
    )
    (tmp_path / "coding_env" / "client.py").write_text(CODING)
    monkeypatch.syspath_prepend(str(tmp_path))


CODING = """
from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.types import Action, Observation, State

class CodeAction(Action):
    code: str

class CodeObservation(Observation):
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0

class CodingEnv(EnvClient[CodeAction, CodeObservation, State]):
    def _step_payload(self, action):
        return {"code": action.code}

    def _parse_result(self, payload):
        fields = {name: value for name, value in payload["observation"].items() if name != "metadata"}
        return StepResult(CodeObservation(**fields), payload.get("reward"), payload.get("done", False))

    def _parse_state(self, payload):
        return State(**payload)
"""


APP = """
import sys

sys.modules["gradio"] = None  # the web page is not served, and importing it takes seconds

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State
from openenv.core.tools.local_python_executor import PyExecutor

from coding_env.client import CodeAction, CodeObservation


class PythonCodeActEnv(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.executor = PyExecutor()
        return CodeObservation()

    def step(self, action, timeout_s=None, **kwargs):
        result = self.executor.run(action.code)
        return CodeObservation(stdout=result.stdout, stderr=result.stderr, exit_code=result.exit_code, reward=0.0)

    @property
    def state(self):
        return State()


app = create_fastapi_app(PythonCodeActEnv, CodeAction, CodeObservation, max_concurrent_envs=8)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("coding_env")
def test_mode_2_the_service_is_an_ordinary_one(tmp_path):
    """ "Mode 2: Server OpenEnvClient", the shell: uvicorn with four workers, installed by its path."""
    (tmp_path / "coding_env" / "server").mkdir()
    (tmp_path / "coding_env" / "server" / "app.py").write_text(APP)
    port = free_port()
    command = [
        "-m",
        "uvicorn",
        "coding_env.server.app:app",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "4",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    server = subprocess.Popen([sys.executable, *command], env=environment, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/health"), 90.0, "the service")
        env = OpenEnvClient(env_name="coding_env", base_url=f"http://127.0.0.1:{port}", message_timeout_s=120)
        env.reset()
        assert env.step("run_python", {"code": "print(1 + 1)"}).observation.strip() == "2"
        env.close()
    finally:
        server.terminate()
        server.wait(20)


def answers(url):
    try:
        return get_json(url)
    except OSError:
        return None


@pytest.mark.usefixtures("coding_env")
def test_mode_2_server_openenvclient(real_servers):
    """ "Mode 2: Server OpenEnvClient"."""
    env = OpenEnvClient(
        env_name="coding_env",
        base_url=real_servers.url("code"),
        message_timeout_s=120,
    )
    env.reset()
    result = env.step("run_python", {"code": "print(1 + 1)"})
    assert result.observation.strip() == "2"
    assert env.execute(env._action("run_python", {"code": "1 / 0"})).observation.exit_code == 1
    env.close()


def test_usage_with_rollout(real_servers):
    """ "Usage with Rollout": the tools of a session, played by a served model."""
    env = OpenEnvClient(base_url=real_servers.url("tools"))
    env.reset()

    env_tools = EnvTool.from_env(env)
    manager = ToolManager(env_tools)

    with OpenAIServer([ToolCall("submit", {"total": 0})]) as server:
        api = OpenAI(model="m", base_url=server.base_url, api_key="k")
        rollout = APIMultiTurnRollout(api=api, tool_manager=manager, max_turns=10)
        (result,) = rollout([{"messages": [{"role": "user", "content": "Submit 0."}]}])
    assert (result["stop_reason"], result["reward"]) == ("done", 1.0)
    env.close()


def test_the_older_spelling_with_a_server_names_the_client():
    """ "OpenEnv(base_url=…)" of the oldest text."""
    with pytest.raises(ValueError, match="OpenEnvClient"):
        OpenEnv(base_url="http://localhost:8000", env_cls="coding_env.CodingEnv", tool_schema=[])


def test_observations_that_are_not_plain_text(real_servers, tmp_path):
    """`observation_processor: render_board.py:render`, of a payload with fields."""
    (tmp_path / "render_board.py").write_text(
        "def render(payload: dict) -> str:\n    return 'Board state: ' + ', '.join(str(v) for v in [payload['text']])\n"
    )
    tokenizer = byte_tokenizer()
    harness = RolloutHarness.from_spec(
        real_servers.url("odd"),
        None,
        tokenizer,
        12,
        renderer=make_renderer(tokenizer),
        observation_processor=f"{tmp_path}/render_board.py:render",
    )
    assert "Board state: seed 1" in tokenizer.decode(harness.reset(seed=1))
    harness.close()


def test_a_mapper_makes_the_servers_action(real_servers):
    """The action mapper of the oldest text, with OpenEnvClient."""

    def code_action_mapper(tool_name, arguments):
        if tool_name == "execute_code":
            return {"code": arguments["code"]}
        return {"tool_name": tool_name, "arguments": arguments}

    tool_schema = [
        {
            "type": "function",
            "function": {
                "name": "execute_code",
                "description": "Run code.",
                "parameters": {"type": "object", "properties": {"code": {"type": "string"}}},
            },
        }
    ]
    env = OpenEnvClient(base_url=real_servers.url("code"), action_mapper=code_action_mapper, tools=tool_schema)
    tool_manager = ToolManager()
    for tool in EnvTool.from_env(env):
        tool_manager.register(tool)
    env.reset()
    assert env.step("execute_code", {"code": "print('x')"}).observation == "x\n"
    env.close()
