"""More episodes at once than the SDK has connections: they wait for each other, and never for ever."""

import threading
from concurrent.futures import ThreadPoolExecutor

from tiltyard import AgentEnv
from tiltyard.envs.agent.sdk import MOST_AT_ONCE
from tiltyard.testing.sandbox_server import Said, SandboxServer

EPISODES = MOST_AT_ONCE + 20


def test_every_episode_shares_one_limit_and_kills_find_a_connection_all_the_same():
    """Below the SDK's 200: while every place is taken by a command, a sandbox can still be closed, and asked for."""
    let_go, running = threading.Event(), threading.Semaphore(0)

    def script(line):
        running.release()
        let_go.wait(60)
        return Said("hello\n")

    def play(env):
        return env.step("run_command", {"command": "hello"}).observation

    with SandboxServer(script) as server, ThreadPoolExecutor(EPISODES + 1) as threads:
        envs = [AgentEnv("my-env", server.url) for _ in range(EPISODES + 1)]
        list(threads.map(AgentEnv.reset, envs))
        idle = envs.pop()
        playing = [threads.submit(play, env) for env in envs]
        for _ in range(MOST_AT_ONCE):
            running.acquire()
        assert not running.acquire(timeout=0.1)
        idle.close()
        assert len(server.killed) == 1
        let_go.set()
        assert [one.result() for one in playing] == ["hello\n"] * EPISODES
        list(threads.map(AgentEnv.close, envs))
        assert server.sandboxes == {}
