"""The `AgentEnv` samples of the reference, on the real local server, with only the import line and the URL changed."""

import pytest

from tiltyard import AgentEnv, APIMultiTurnRollout, EnvTool, OpenAI, ToolCall, ToolManager
from tiltyard.testing.openai_server import OpenAIServer


@pytest.fixture
def api_url(sandbox_server, monkeypatch):
    """The server of the samples; theirs checks no key, ours has one."""
    monkeypatch.setenv("E2B_API_KEY", sandbox_server.api_key)
    return sandbox_server.url


def test_environments_agentenv_firecracker_microvm_sandboxes(api_url):
    """ "Environments (Envs)", "AgentEnv: Firecracker microVM Sandboxes"; the template is the local one."""
    env = AgentEnv(
        template="base",
        api_url=api_url,
        sandbox_timeout=600,
    )
    env.reset()
    result = env.step("run_command", {"command": 'python -c "print(1 + 1)"'})
    assert result.observation == "2\n"
    env.close()


def test_environments_registering_task_tools(api_url):
    """ "Environments (Envs)", "Registering task tools": a command template and a handler, both chained."""
    env = AgentEnv(template="base", api_url=api_url)
    env.register_command_tool(
        {
            "type": "function",
            "function": {
                "name": "run_tests",
                "description": "Run the task test suite.",
                "parameters": {
                    "type": "object",
                    "properties": {"test_file": {"type": "string"}},
                    "required": ["test_file"],
                },
            },
        },
        "mkdir -p work && cd work && pytest {test_file} -x -q",
    )
    submit_schema = {
        "type": "function",
        "function": {
            "name": "submit",
            "description": "Submit.",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}},
        },
    }

    def _submit(env, arguments):
        env.submitted_code = arguments.get("code", "")
        return "Solution submitted."

    assert env.register_tool(submit_schema, _submit) is env
    env.reset()
    env.step("write_file", {"path": "bin/pytest", "content": '#!/bin/sh\nprintf "<%s>" "$@"\n'})
    env.step("run_command", {"command": "chmod +x bin/pytest; mkdir -p ~/.local/bin; mv bin/pytest ~/.local/bin/"})
    assert env.step("run_tests", {"test_file": "tests; echo pwned"}).observation == "<tests; echo pwned><-x><-q>"
    assert env.step("submit", {"code": "x = 1"}).observation == "Solution submitted."
    assert env.submitted_code == "x = 1"
    env.close()


def test_environments_usage_with_rollout(api_url):
    """ "Environments (Envs)", "Usage with Rollout": the tools of a sandbox, played by a served model."""
    env = AgentEnv(template="base", api_url=api_url)
    env.reset()

    env_tools = EnvTool.from_env(env)
    manager = ToolManager(env_tools)

    trajectories = [{"messages": [{"role": "user", "content": "What is the kernel?"}]}]
    with OpenAIServer([ToolCall("run_command", {"command": "uname -s"}), "Linux"]) as server:
        api = OpenAI(model="m", base_url=server.base_url, api_key="k")
        rollout = APIMultiTurnRollout(api=api, tool_manager=manager, max_turns=10)
        (result,) = rollout(trajectories)
    assert [message["content"] for message in result["messages"] if message["role"] == "tool"] == ["Linux\n"]
    env.close()


def test_environments_all_parameters_of_the_table(api_url):
    """The Chinese page of "Environments", the table of parameters: all of them, by their names."""
    env = AgentEnv(
        template="base",
        api_url=api_url,
        api_key=None,
        sandbox_timeout=300,
        command_timeout=120,
        setup_commands=["echo $NAME"],
        sandbox_envs={"NAME": "a b"},
        metadata={"run": "x"},
        refresh_timeout=True,
        include_default_tools=True,
    )
    assert env.reset().observation == "a b\n"
    assert env.sandbox.get_info().metadata["run"] == "x"
    assert env.sandbox.sandbox_id == env.sandbox_id
    assert env.evaluate([{}, {}]) == [0.0, 0.0]
    env.close()
