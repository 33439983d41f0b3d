"""Twinkle, "OpenEnv 集成：连接外部环境到 RL 训练": the samples, with only imports and URLs changed.

The article is older than the other texts: its `OpenEnv(base_url=…)` is today's `OpenEnvClient`, and says so.
The servers are ours, so that the package `openenv` is not needed.
"""

# ruff: noqa: RUF002 - the headings are Chinese, and so is their punctuation

import re
from dataclasses import MISSING, fields

import pytest

from tiltyard import (
    EnvTool,
    OpenEnv,
    OpenEnvClient,
    StepResult,
    TiltyardError,
    ToolManager,
    resolve_env,
)
from tiltyard.testing.scripted import ScriptedPolicy
from tiltyard.types import Prompt, ToolCall

ENV = '''
from tiltyard import Env, StepResult

class Coding(Env):
    """Two calls end it; the first earns a quarter."""

    def reset(self, trajectory=None):
        self.calls = 0
        return StepResult("Write code.")

    def step(self, tool_name, arguments):
        self.calls += 1
        text = f"{tool_name} {arguments['code']} {arguments.get('language', '')}".strip()
        return StepResult(text, (0.25, 1.0)[self.calls - 1], self.calls == 2)

    def tools(self):
        properties = {"code": {"type": "string"}, "language": {"type": "string"}}
        parameters = {"type": "object", "properties": properties, "required": ["code"]}
        return [{"type": "function", "function": {"name": "execute_code", "description": "", "parameters": parameters}}]
'''

TOOL_SCHEMA = [
    {
        "type": "function",
        "function": {
            "name": "execute_code",
            "description": "在沙箱中运行 Python 代码",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}},
        },
    }
]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    path = tmp_path_factory.mktemp("article") / "coding.py"
    path.write_text(ENV)
    url, server = resolve_env(f"{path}:Coding", max_concurrent_envs=4)
    yield url
    assert server.stop().leaked == 0


@pytest.fixture
def my_env(url):
    """A session on the server of the samples."""
    env = OpenEnvClient(base_url=url, tools=TOOL_SCHEMA)
    yield env
    env.close()


def test_layer_1_step_result():
    """ "第一层：Env 基类", the dataclass."""
    defaults = {f.name: f.default if f.default is not MISSING else f.default_factory() for f in fields(StepResult)}
    assert list(defaults.items())[:4] == [("observation", ""), ("reward", 0.0), ("done", False), ("info", {})]


def test_layer_1_interactive(my_env):
    """ "第一层：Env 基类", 交互模式: until it is done."""
    trajectory, tool_name, arguments = {"messages": []}, "execute_code", {"code": "1"}
    env = my_env
    env.reset(trajectory)
    result = env.step(tool_name, arguments)
    assert not result.done
    result = env.step(tool_name, arguments)
    assert result.done


def test_layer_1_batch_evaluation(my_env):
    """ "第一层：Env 基类", 批量评估模式: a session has no rewards of its own for finished trajectories."""
    trajectories = [{"messages": []}, {"messages": []}]
    rewards = my_env.evaluate(trajectories)
    assert rewards == [0.0, 0.0]


def test_layer_2_env_tool(my_env):
    """ "第二层：EnvTool 适配器": each tool registered; `done` and `episode_reward` are those of the episode."""
    tool_manager = ToolManager()
    tools = EnvTool.from_env(my_env)
    for tool in tools:
        tool_manager.register(tool)
    my_env.reset()
    tool_manager({"function": {"name": "execute_code", "arguments": {"code": "1"}}})
    assert (tool.done, tool.episode_reward) == (False, 0.25)
    tool_manager({"function": {"name": "execute_code", "arguments": {"code": "2"}}})
    assert (tool.done, tool.episode_reward) == (True, 1.25)


def test_layer_3_openenv_with_a_server():
    """ "第三层：OpenEnv WebSocket 客户端": the older spelling is an error that names the newer one."""
    my_mapper = None
    with pytest.raises(ValueError, match="OpenEnvClient"):
        OpenEnv(
            base_url="http://localhost:8000",
            env_cls="coding_env.CodingEnv",
            env_kwargs={"message_timeout_s": 30},
            tool_schema=[...],
            action_mapper=my_mapper,
        )


def test_lazy_initialisation():
    """ "懒初始化": a client is made without a server, and dials at the first reset."""
    env = OpenEnvClient(base_url="http://127.0.0.1:9", connect_timeout_s=0.5)
    with pytest.raises(TiltyardError, match=re.escape("127.0.0.1:9")):
        env.reset()
    env.close()


def test_action_mapping(url):
    """ "动作映射": a mapper says what is sent; without one it is the name and the arguments."""

    def code_action_mapper(tool_name, arguments):
        if tool_name == "execute_code":
            arguments = {"code": arguments["code"], "language": "python"}
        return {"type": "call_tool", "tool_name": tool_name, "arguments": arguments}

    env = OpenEnvClient(base_url=url, action_mapper=code_action_mapper, tools=TOOL_SCHEMA)
    env.reset()
    assert "execute_code x python" in env.step("execute_code", {"code": "x"}).observation
    env.close()


def test_episode_reward_tracking(my_env):
    """ "Episode 奖励追踪": `info` has the server's own result and the sum so far."""
    my_env.reset()
    first = my_env.step("execute_code", {"code": "1"})
    second = my_env.step("execute_code", {"code": "2"})
    assert [first.reward, second.reward] == [0.25, 1.0]
    assert [first.info["episode_reward"], second.info["episode_reward"]] == [0.25, 1.25]
    assert second.info["raw_result"].reward == 1.0


def test_complete_example(url):
    """ "完整使用示例": made, wrapped, registered, played until it is done, closed."""
    model = ScriptedPolicy([ToolCall("execute_code", {"code": "1"}), ToolCall("execute_code", {"code": "2"})])
    tool_manager = ToolManager()

    env = OpenEnvClient(
        base_url=url,
        tools=TOOL_SCHEMA,
    )

    tools = EnvTool.from_env(env)

    for tool in tools:
        tool_manager.register(tool)

    observation = env.reset().observation
    messages = [{"role": "user", "content": observation}]
    while True:
        reply = model.answer(Prompt(messages, (), tool_manager.tool_infos()))
        (action,) = reply.tool_calls
        result = env.step(action.name, action.arguments)
        messages = [
            *messages,
            {"role": "assistant", "content": reply.text},
            {"role": "tool", "content": result.observation},
        ]
        if result.done:
            break

    env.close()
    assert (result.info["episode_reward"], len(messages)) == (1.25, 5)
