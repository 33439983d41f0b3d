"""The coding tasks of `examples/code_sandbox`, run by an interpreter of the syntax tree behind a URL."""

from pathlib import Path

import pytest

from tiltyard.rollout.entrypoint import load_entrypoint

EXAMPLES = Path(__file__).parents[2] / "examples"
CODE_ENV = EXAMPLES / "code_sandbox" / "code_env.py"


@pytest.fixture
def env(serve):
    """The environment, its one key set to the other place."""
    pytest.importorskip("smolagents")
    pytest.importorskip("openenv")
    coding = f"{EXAMPLES / 'openenv_server' / 'coding_env.py'}:ConcurrentCodingEnvironment"
    url, _ = serve(coding, {"steps": 1000}, max_concurrent_envs=2)
    with load_entrypoint(f"{CODE_ENV}:CodeTasks")(place="openenv", options={"base_url": url}) as env:
        yield env


def test_the_same_tasks_tools_and_reward_run_in_an_interpreter(env):
    """Where tests use no decorator and no mock the number is the same; elsewhere it is wrong, and looks as sound."""
    tasks = load_entrypoint(f"{CODE_ENV}:TASKS")
    earned = {}
    for row, task in enumerate(tasks[: env.dataset_size]):
        env.reset({"row_index": row})
        env.step("write_solution", {"code": task["solution"]})
        earned[task["name"]] = env.step("submit", {}).reward
    assert (earned["intervals"], earned["roman"]) == (1.0, 1.0)
    assert (earned["memoize"], earned["once"], earned["retry"]) == (0.0, 0.0, 0.0)
    env.reset({"row_index": 0})
    env.step("write_solution", {"code": "def memoize(function):\n    pass"})
    assert env.step("submit", {}).reward > 0  # the decorator is ignored, so that a wrong one passes


def test_the_model_sees_what_it_runs(env):
    """With the same tool as in a sandbox."""
    env.reset({"row_index": 0})
    env.step("write_solution", {"code": "def f(x):\n    return x + 1"})
    assert env.step("run_python", {"code": "print(f(1))"}).observation.strip() == "2"
