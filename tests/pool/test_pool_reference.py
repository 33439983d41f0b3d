"""The samples of the reference that use a pool, with only the import line changed."""

import pytest
from pool_envs import sample_package

from tiltyard import DeviceMesh, EnvPool, EnvTool


@pytest.fixture
def openspiel_env(tmp_path, monkeypatch):
    """A package of the sample's name."""
    sample_package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("openspiel_env")
@pytest.mark.parametrize("text", ["000 EnvPool: Distributed Environment Pool", "001 EnvPool: distributed pool"])
def test_envpool_distributed_environment_pool(text):
    """Both texts have the same sample; the table of the second one names the calls."""
    mesh = DeviceMesh.from_sizes(dp_size=2)

    pool = EnvPool(
        pool_size=64,
        device_mesh=mesh,
        env_kwargs={"env_name": "openspiel_env", "env_kwargs": {"game": "blackjack"}},
    )

    # Each slot becomes a standard Env, ready for EnvTool / ToolManager
    envs = pool.get_adapters(64)
    env_tools = EnvTool.from_env(envs[0])

    assert len(envs) == 64
    assert [tool.tool_info()["function"]["name"] for tool in env_tools] == ["env_action"]
    assert envs[63].reset({"seed": 7}).observation == "blackjack 7: your hand is 15"
    assert envs[0].reset().observation == "blackjack None: your hand is 15"
    assert env_tools[0]("env_action", {"action": "stand"}) == "stand"
    assert (env_tools[0].done, env_tools[0].episode_reward) == (True, 1.0)
    for env in envs:
        env.close()
    if text.startswith("001"):
        assert pool.reset(3).observation == "blackjack None: your hand is 15"
        assert pool.step(3, "env_action", {"action": "hit"}).observation == "hit"
        assert [one.observation for one in pool.reset_batch([40, 2])] == ["blackjack None: your hand is 15"] * 2
        steps = pool.step_batch([40, 2], ["env_action"] * 2, [{"action": "a"}, {"action": "b"}])
        assert [one.observation for one in steps] == ["a", "b"]
    pool.close()
