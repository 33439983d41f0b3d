"""An episode against a scripted server, for another interpreter: prints what it saw, and with which SDK."""

import json

from e2b.api.metadata import package_version

from tiltyard.envs.agent.env import AgentEnv
from tiltyard.envs.result import FAILURE
from tiltyard.errors import ConfigurationError
from tiltyard.testing.sandbox_server import Said, SandboxServer

SCRIPT = {"hello": Said("hello\n"), "fail": Said("out\n", "err\n", 3), "cut": Said("part", drops=True)}


def play(server):
    with AgentEnv("my-env", server.url, start_timeout_s=1, command_timeout=5) as env:
        try:
            env.reset()
        except ConfigurationError as error:
            return {"refused": "405" in str(error) and "'e2b<2.51'" in str(error) and package_version in str(error)}
        seen = [env.step("run_command", {"command": command}).observation for command in ("hello", "fail")]
        seen.append(env.step("write_file", {"path": "/a", "content": "text"}).observation)
        seen.append(env.step("read_file", {"path": "/a"}).observation)
        cut = env.step("run_command", {"command": "cut"})
        env.reset()
        server.drop(env.sandbox_id)
        lost = env.step("run_command", {"command": "hello"})
        env.reset()
        reaped = AgentEnv.reap(server.sandboxes[env.sandbox_id].metadata["tiltyard_run"], server.url)
        return {
            "seen": seen,
            "failures": [type(result.info[FAILURE]).__name__ for result in (cut, lost)],
            "reaped": reaped == [server.created[-1]],
            "left": len(server.sandboxes),
        }


told = {"e2b": package_version}
for path in ("/sandboxes", "/v2/sandboxes"):
    with SandboxServer(SCRIPT, refuses=path) as server:
        told[path] = play(server)
print(json.dumps(told))
