"""The example of a coding environment, served as its README says."""

from pathlib import Path

import pytest
from openenv_servers import get_json

from tiltyard import OpenEnvClient, RemoteEnvClient, resolve_env

SPEC = Path(__file__).parents[2] / "examples" / "openenv_server" / "coding_env.py"


def test_the_example_serves_a_batch_from_several_workers(serve, monkeypatch):
    """The class that declares concurrency has workers x sessions; the one that does not has one in each."""
    pytest.importorskip("smolagents")
    pytest.importorskip("openenv")
    with pytest.raises(ValueError, match="SUPPORTS_CONCURRENT_SESSIONS = True"):
        resolve_env(f"{SPEC}:CodingEnvironment", max_concurrent_envs=2)
    url, server = serve(f"{SPEC}:ConcurrentCodingEnvironment", workers=2, max_concurrent_envs=4)
    assert server.max_sessions == 8
    assert get_json(f"{url}/schema")["action"]["required"] == ["code"]
    clients = [RemoteEnvClient(url, action_field="code") for _ in range(8)]
    tasks = [client.reset(seed=seed // 4)[0]["stdout"] for seed, client in enumerate(clients)]
    assert [len(set(tasks[:4])), len(set(tasks))] == [1, 2]
    for client in clients:
        numbers = tasks[clients.index(client)].partition("[")[2].partition("]")[0]
        payload, reward, done, _, _ = client.step(f"print(sum(n * n for n in [{numbers}]))")
        assert (payload["exit_code"], reward, done) == (0, 1.0, True)
        client.close()
    with OpenEnvClient(base_url=url, action_mapper=lambda name, arguments: arguments) as env:
        env.reset({"seed": 1})
        assert env.step("run_python", {"code": "x = 2\nprint(x + 1)"}).observation.strip() == "3"
