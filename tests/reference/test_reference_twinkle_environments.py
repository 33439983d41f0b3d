"""Twinkle, "Environments (Envs)", in English and Chinese: the samples, with only imports and URLs changed.

Those that need the package `openenv` are in `tests/openenv_client/test_oe_reference.py`; `README.md` lists all.
"""

import inspect
from abc import ABC
from dataclasses import MISSING, fields

import pytest

from tiltyard import (
    APIMultiTurnRollout,
    Env,
    EnvTool,
    MultiTurnRollout,
    OpenAI,
    StepResult,
    ToolCall,
    ToolManager,
    check_env,
)
from tiltyard.testing.openai_server import OpenAIServer
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens

TEXTS = {
    "english": {
        "tool": "Execute Python code in a sandbox.",
        "code": "Python code to execute.",
        "run": "Run Python code.",
    },
    "chinese": {"tool": "在沙箱中执行 Python 代码。", "code": "要执行的 Python 代码。", "run": "运行 Python 代码。"},
}
READY = {"english": "Sandbox ready.", "chinese": "沙箱已就绪。"}


@pytest.fixture(params=TEXTS)
def language(request):
    return request.param


class MyEnv(Env):
    """The samples leave it open: a search that finds the answer at the second try."""

    def reset(self, trajectory=None):
        self.tries = 0
        return StepResult("Search for Python.")

    def step(self, tool_name, arguments):
        self.tries += 1
        done = self.tries == 2
        return StepResult(f"{tool_name}: {arguments['query']}", float(done), done)

    def tools(self):
        parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
        function = {"name": "search", "description": "Search the web.", "parameters": parameters}
        return [{"type": "function", "function": function}]

    def evaluate(self, trajectories, **kwargs):
        return [float("Python" in trajectory["messages"][-1]["content"]) for trajectory in trajectories]


def test_env_base_class():
    """ "Env Base Class", "Env 基类": five methods, one of them abstract, with these parameters."""
    assert issubclass(Env, ABC)
    assert Env.__abstractmethods__ == {"step"}
    shown = {
        "reset": ["self", "trajectory"],
        "step": ["self", "tool_name", "arguments"],
        "tools": ["self"],
        "evaluate": ["self", "trajectories", "kwargs"],
        "close": ["self"],
    }
    assert {name: list(inspect.signature(getattr(Env, name)).parameters) for name in shown} == shown


def test_step_result():
    """ "StepResult": these fields with these defaults, in this order, and what we add behind them."""
    defaults = {f.name: f.default if f.default is not MISSING else f.default_factory() for f in fields(StepResult)}
    assert list(defaults.items())[:4] == [("observation", ""), ("reward", 0.0), ("done", False), ("info", {})]


def test_two_usage_modes_interactive():
    """ "Two Usage Modes", 1, "两种使用模式": step by step until it is done."""
    trajectory = {"messages": []}
    env = MyEnv()
    env.reset(trajectory)
    result = env.step("search", {"query": "Python"})
    steps = 1
    while not result.done:
        result = env.step("search", {"query": "Python"})
        steps += 1
    assert (steps, result.reward) == (2, 1.0)


def test_two_usage_modes_batch_evaluation():
    """ "Two Usage Modes", 2: one reward for each completed trajectory; zeros where nothing else is said."""
    completed_trajectories = [{"messages": [{"role": "assistant", "content": text}]} for text in ("Python", "Perl")]
    env = MyEnv()
    rewards = env.evaluate(completed_trajectories)
    assert rewards == [1.0, 0.0]
    assert Env.evaluate(env, completed_trajectories) == [0.0, 0.0]


def test_env_tool():
    """ "EnvTool": one tool for each that the environment defines, registered in a manager."""
    env = MyEnv()

    env_tools = EnvTool.from_env(env)

    manager = ToolManager(env_tools)

    assert manager.names == ["search"]
    env.reset()
    for _ in range(2):
        manager({"function": {"name": "search", "arguments": {"query": "Python"}}})
    (tool,) = env_tools
    assert (tool.done, tool.episode_reward, tool.last_result.observation) == (True, 1.0, "search: Python")


def test_manual_construction(language):
    """ "Manual Construction", "手动构造": the schema is the one that was given."""
    my_env = CodeExecutionEnv(READY[language], TEXTS[language]["run"])
    env_tool = EnvTool(
        env=my_env,
        tool_name="execute_code",
        description=TEXTS[language]["tool"],
        parameters={
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": TEXTS[language]["code"]},
            },
            "required": ["code"],
        },
    )
    function = env_tool.tool_info()["function"]
    assert (function["name"], function["description"]) == ("execute_code", TEXTS[language]["tool"])
    assert function["parameters"]["properties"]["code"]["description"] == TEXTS[language]["code"]
    my_env.reset()
    assert env_tool("execute_code", {"code": "print(1)"}) == "print(1) ran"


def test_usage_with_rollout():
    """ "Usage with Rollout", "与 Rollout 集成使用": an environment's tools, played by a model behind an API."""
    trajectories = [{"messages": [{"role": "user", "content": "Search twice."}]}]
    with OpenAIServer([ToolCall("search", {"query": "Python"}), ToolCall("search", {"query": "docs"})]) as server:
        api = OpenAI(model="m", base_url=server.base_url, api_key="k")
        env = MyEnv()

        env.reset()

        env_tools = EnvTool.from_env(env)
        manager = ToolManager(env_tools)

        rollout = APIMultiTurnRollout(api=api, tool_manager=manager, max_turns=10)
        results = rollout(trajectories)
    assert [(result["stop_reason"], result["reward"], result["turns"]) for result in results] == [("done", 1.0, 2)]


class Sandbox:
    """What the sample's `create_sandbox` is left to be."""

    cleaned = 0

    def run(self, code):
        return "an error" if "raise" in code else f"{code} ran"

    def cleanup(self):
        Sandbox.cleaned += 1


def create_sandbox():
    return Sandbox()


class CodeExecutionEnv(Env):
    """The sample's class; the two texts are those of its language."""

    def __init__(self, ready, description):
        self.ready, self.description = ready, description

    def reset(self, trajectory=None):
        self._sandbox = create_sandbox()
        return StepResult(observation=self.ready)

    def step(self, tool_name, arguments):
        code = arguments.get("code", "")
        output = self._sandbox.run(code)
        return StepResult(
            observation=output,
            reward=1.0 if "error" not in output.lower() else 0.0,
            done=False,
        )

    def tools(self):
        return [
            {
                "type": "function",
                "function": {
                    "name": "execute_code",
                    "description": self.description,
                    "parameters": {
                        "type": "object",
                        "properties": {
                            "code": {"type": "string"},
                        },
                    },
                },
            }
        ]

    def close(self):
        self._sandbox.cleanup()


def test_implementing_a_custom_environment(language):
    """ "Implementing a Custom Environment", "实现自定义环境": played with a model of this process, and closed once."""
    tokenizer = byte_tokenizer("chatml_tools")
    call = '<tool_call>\n{"name": "execute_code", "arguments": {"code": "1 + 1"}}\n</tool_call>'
    policy = ScriptedTokens(tokenizer, [call, call.replace("1 + 1", "raise"), "Done."])
    before = Sandbox.cleaned
    rollout = MultiTurnRollout(
        policy,
        env_factory=lambda: CodeExecutionEnv(READY[language], TEXTS[language]["run"]),
        tokenizer=tokenizer,
        preflight=False,
    )
    (result,) = rollout([{"messages": []}])
    assert (result["stop_reason"], result["rewards"]) == ("stop", [1.0, 0.0, 0.0])
    assert result["messages"][0]["content"] == READY[language]
    assert Sandbox.cleaned == before + 1


def test_the_custom_environment_is_checked_as_any_other():
    """Its `close` before a `reset` raises, as the sample has it: `check_env` says so and names the place."""
    report = check_env(MyEnv)
    assert report.ok, str(report)
