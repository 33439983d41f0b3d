"""The coding tasks of `examples/code_sandbox`: hidden tests that run in the sandbox, played from a script."""

import json
from pathlib import Path

import pytest

from tiltyard import AgentEnv, ToolCall
from tiltyard.cli import main
from tiltyard.rollout.entrypoint import load_entrypoint
from tiltyard.testing.openai_server import OpenAIServer

FOLDER = Path(__file__).parents[2] / "examples" / "code_sandbox"
CodeTasks = load_entrypoint(f"{FOLDER / 'code_env.py'}:CodeTasks")
TASKS = load_entrypoint(f"{FOLDER / 'code_env.py'}:TASKS")
BY_NAME = {task["name"]: task for task in TASKS}


@pytest.fixture(scope="module")
def env(sandbox_server):
    options = {"template": "base", "api_url": sandbox_server.url, "api_key": sandbox_server.api_key}
    with CodeTasks(options=options) as env:
        yield env


def submitted(env, name, solution):
    """What a solution of this task earns."""
    row = next(number for number, task in enumerate(TASKS) if task["name"] == name)
    held_out = row >= env.dataset_size
    env.reset({"row_index": row - env.dataset_size if held_out else row, "evaluation": held_out})
    env.step("write_solution", {"code": solution})
    return env.step("submit", {})


@pytest.mark.parametrize("name", BY_NAME)
def test_the_solution_of_every_task_passes_its_tests_and_nothing_passes_none(env, name):
    """The tests can fail, and need no more than they ask for."""
    result = submitted(env, name, BY_NAME[name]["solution"])
    assert (result.reward, result.done, result.info["success"]) == (1.0, True, True)
    assert submitted(env, name, "").reward == 0.0


def test_a_solution_that_is_half_right_earns_its_share(env):
    """A `memoize` that calls each time returns what it should, and keeps its name; it is not once."""
    forgetful = (
        "import functools\ndef memoize(function):\n    return functools.wraps(function)(lambda *a: function(*a))"
    )
    result = submitted(env, "memoize", forgetful)
    assert (result.reward, result.info["success"]) == (0.5, False)
    assert result.info["passed"] == ["test_functions_do_not_share_results", "test_the_name_is_kept"]


def test_the_model_tries_its_solution_before_it_submits(env):
    """What it prints is what it sees, and its errors are."""
    env.reset({"row_index": 0})
    env.step("write_solution", {"code": "def f(x):\n    return x + 1"})
    assert env.step("run_python", {"code": "print(f(1))"}).observation == "2\n"
    assert "NameError" in env.step("run_python", {"code": "g()"}).observation


FORGERIES = {
    "leaves early": "import os\nos._exit(0)",
    "exits with 0": "raise SystemExit(0)",
    "prints": "print('test_a_call_is_made_once')\nimport os\nos.write(1, b'[\"test_a_call_is_made_once\"]\\n')",
    "writes over the runner": "open('runner.py', 'w').write('print(1)')",
    "reads the order": "import json\nprint(json.load(open('order.json')))",
    "writes to its parent's output": "import os\nos.write(os.open(f'/proc/{os.getppid()}/fd/1', os.O_WRONLY), b'x')",
    "kills the runner": "import os\nos.kill(os.getppid(), 9)",
}


@pytest.mark.parametrize("code", FORGERIES.values(), ids=FORGERIES)
def test_a_submission_does_not_pass_by_leaving_printing_or_writing(env, code):
    """Only a test that has returned passes."""
    assert submitted(env, "once", code).reward == 0.0


def test_what_the_model_left_running_does_not_reach_the_scoring(env):
    """The hidden tests run in a new sandbox, in which nothing of the episode is."""
    env.reset({"row_index": 2})
    before = env.place.env.sandbox_id
    spoil = "import os\nos.system('echo spoiled > runner.py; sleep 100 &')"
    env.step("run_python", {"code": spoil})
    env.step("write_solution", {"code": TASKS[2]["solution"]})
    assert env.step("submit", {}).reward == 1.0
    assert env.place.env.sandbox_id != before


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_the_manifest_is_played_by_a_served_model(split, tmp_path, sandbox_server, monkeypatch):
    """From the command line, in sandboxes; the summary counts what is left of them."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")

    def script(request, turn):
        asked = next(message["content"] for message in request["messages"] if message["role"] == "user")
        task = next(task for task in TASKS if task["prompt"] == asked)
        lines = (ToolCall("write_solution", {"code": task["solution"]}), ToolCall("run_python", {"code": ""}))
        return lines[turn] if turn < 2 else ToolCall("submit", {})

    place = {"template": "base", "api_url": sandbox_server.url, "api_key": sandbox_server.api_key}
    with OpenAIServer(script) as server:
        served = ["--api", server.base_url, "--model", "m", "--concurrency", "4", "--split", split]
        setting = ["--set", f"environment.env_config.options={json.dumps(place)}"]
        arguments = ["rollout", str(FOLDER / "code_sandbox.yaml"), "--tasks", "4", "--out", str(tmp_path / "run")]
        assert main([*arguments, *served, *setting]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["endings"], summary["failed"], summary["leaked"]) == ({"done": 4}, 0, 0)
    (figures,) = summary["evaluations"].values()
    assert figures["mean"] == 1.0
    assert AgentEnv.reap(None, sandbox_server.url, sandbox_server.api_key) == []
