"""The samples of the public contract, and of the documentation that it was made from, with only the import changed."""

import pytest
from front_scripts import ASK, SUBMIT, TOKENIZER, Lab

import tiltyard
from tiltyard import ToolManager
from tiltyard.envs.tool import EnvTool
from tiltyard.rollout.multi_turn import MultiTurnRollout
from tiltyard.testing.openai_server import OpenAIServer
from tiltyard.testing.tokens import ScriptedTokens
from tiltyard.types import StepResult, ToolCall


class MyEnv(tiltyard.Env):
    """The documentation's environment that runs code."""

    def reset(self, trajectory=None):
        self._sandbox = {}
        return StepResult(observation="Sandbox ready.")

    def step(self, tool_name, arguments):
        output = str(eval(arguments.get("code", ""), {}, self._sandbox))
        return StepResult(observation=output, reward=1.0 if "error" not in output.lower() else 0.0, done=False)

    def tools(self):
        parameters = {"type": "object", "properties": {"code": {"type": "string"}}}
        function = {"name": "execute_code", "description": "Run Python code.", "parameters": parameters}
        return [{"type": "function", "function": function}]


@pytest.fixture
def served():
    script = [ToolCall("execute_code", {"code": "1 + 1"}), "It is 2."]
    with OpenAIServer(script, tokens="vllm") as server:
        yield server


def test_usage_with_rollout(served):
    """ "Usage with Rollout": an environment that was reset by hand, its tools in a manager, and the rollout."""
    api = tiltyard.OpenAI(model="m", base_url=served.base_url, api_key="k")
    env = MyEnv()
    trajectories = [{"messages": [{"role": "user", "content": "How much is 1 + 1?"}]}]

    env.reset()
    env_tools = EnvTool.from_env(env)
    manager = ToolManager(env_tools)
    rollout = tiltyard.APIMultiTurnRollout(api=api, tool_manager=manager, max_turns=10)
    results = rollout(trajectories)

    [result] = results
    assert [message["role"] for message in result["messages"]] == ["user", "user", "assistant", "tool", "assistant"]
    assert (result["messages"][3]["content"], result["reward"], result["stop_reason"]) == ("2", 1.0, "stop")


def test_interactive_and_batch_mode():
    """ "Two Usage Modes": step by step, and `evaluate` on completed trajectories."""
    env = MyEnv()
    env.reset({"messages": []})
    assert env.step("execute_code", {"code": "2 * 3"}).observation == "6"
    assert env.evaluate([{"messages": []}, {"messages": []}]) == [0.0, 0.0]


def test_the_signature_of_the_local_rollout():
    """Section 6: `MultiTurnRollout(policy, tool_manager, env_factory, max_turns, max_trajectory_tokens, trace_dir)`."""
    policy = ScriptedTokens(TOKENIZER, [SUBMIT])
    rollout = tiltyard.MultiTurnRollout(policy, None, Lab, 6, 4096, None, tokenizer=TOKENIZER)
    [result] = rollout([{"messages": [ASK]}])
    assert result.keys() >= {
        *("messages", "turns", "stop_reason", "truncated", "reward", "rewards", "input_ids", "labels", "logprobs")
    }


def test_the_signature_of_the_api_rollout(served, tmp_path):
    """Section 6: `APIMultiTurnRollout(api, tool_manager, sampling_params, max_turns, concurrency, extra_body, …)`."""
    api = tiltyard.OpenAI(model="m", base_url=served.base_url, api_key="k", token_ids="vllm")
    manager = lambda row: ToolManager(EnvTool.from_env(MyEnv()))  # noqa: E731  # as a caller writes it
    sampling = {"temperature": 0.7, "max_tokens": 100}
    rollout = tiltyard.APIMultiTurnRollout(api, manager, sampling, 6, 8, {"top_k": 5}, tmp_path)
    results = rollout([{"messages": [ASK]}] * 3)
    assert [result["reward"] for result in results] == [1.0] * 3
    assert {(body["temperature"], body["top_k"], body["max_tokens"]) for body in served.bodies} == {(0.7, 5, 100)}
    assert all(result["labels"] for result in results)


def test_a_failed_trajectory_never_stops_the_batch_and_never_scores_0():
    """Section 6, the last line: its reward is None."""

    def tools_of(row):
        if row["fails"]:
            raise OSError("no sandbox")
        return ToolManager(EnvTool.from_env(Lab()))

    rollout = MultiTurnRollout(ScriptedTokens(TOKENIZER, [SUBMIT]), tools_of, tokenizer=TOKENIZER, preflight=False)
    results = rollout([{"messages": [ASK], "fails": fails} for fails in (False, True, False)])
    assert [result["reward"] for result in results] == [1.0, None, 1.0]
