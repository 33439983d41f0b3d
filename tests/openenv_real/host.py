"""A process of real OpenEnv servers, those of the released `openenv`: `python host.py SCAFFOLDS PORT`.

Each environment has its own app under a path of its name; `GET /NAME/active` is how many sessions it has.
"""

import os
import sys
import time
from typing import Any

sys.modules["gradio"] = None  # the web page of openenv is not served, and importing it takes seconds

# ruff: noqa: E402 - after the line above

import uvicorn
from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.tools.local_python_executor import PyExecutor

CAPACITY = 64
SLOW_S = 1.0


class OddAction(Action):
    message: str = ""
    seconds: float = 0.0


class OddObservation(Observation):
    text: str = ""


class OddEnvironment(Environment):
    """Does what its message says: `hang`, `die`, `big`, `nan`, `raise`, `end`; anything else comes back."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State(episode_id="none", step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> OddObservation:
        self._state = State(episode_id=episode_id or "none", step_count=0)
        return OddObservation(text=f"seed {seed}, options {sorted(kwargs)}")

    def step(self, action: OddAction, timeout_s: float | None = None, **kwargs: Any) -> OddObservation:
        self._state.step_count += 1
        time.sleep(action.seconds)
        match action.message:
            case "hang":
                time.sleep(3600)
            case "die":
                os._exit(1)
            case "big":
                return OddObservation(text="x" * 5_000_000, reward=1.0)
            case "nan":
                return OddObservation(text="unknown", reward=float("nan"))
            case "unscored":
                return OddObservation(text="not scored")
            case "raise":
                raise ValueError("the environment broke")
            case "end":
                return OddObservation(text="over", reward=2.0, done=True, metadata={"answer": 42})
        return OddObservation(text=f"{action.message} {self._state.step_count}", reward=0.5)

    @property
    def state(self) -> State:
        return self._state


class SingleEnvironment(OddEnvironment):
    """Declares no concurrency, as most environments do."""

    SUPPORTS_CONCURRENT_SESSIONS = False


class SlowEnvironment(OddEnvironment):
    """Takes its time to be made."""

    def __init__(self):
        time.sleep(SLOW_S)
        super().__init__()


class BrokenEnvironment(OddEnvironment):
    """Cannot be made."""

    def __init__(self):
        raise OSError("the licence server is down")


class ToolsEnvironment(MCPEnvironment):
    """Tools over MCP; each call that works earns 1, and `submit` ends the episode."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("tools")
        self._total = 0

        @server.tool
        def add(a: int, b: int) -> int:
            """Add two integers."""
            self._total += a + b
            return a + b

        @server.tool
        def fail(why: str) -> str:
            """Fail."""
            raise ValueError(why)

        @server.tool
        def submit(total: int) -> str:
            """Say what the sums came to."""
            return "right" if total == self._total else "wrong"

        super().__init__(server)
        self._state = State(step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        self._total = 0
        self._state = State(episode_id=episode_id, step_count=0)
        return Observation(metadata={"seed": seed})

    async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        self._state.step_count += 1
        observation = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        if isinstance(action, CallToolAction) and isinstance(observation, CallToolObservation):
            observation.reward = 0.0 if observation.error else 1.0
            observation.done = action.tool_name == "submit"
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return self._state


class CodeAction(Action):
    code: str


class CodeObservation(Observation):
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0


class CodeEnvironment(Environment):
    """Runs Python in the interpreter of smolagents."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State(step_count=0)
        self._executor = PyExecutor()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> CodeObservation:
        self._executor = PyExecutor()
        self._state = State(episode_id=episode_id, step_count=0)
        return CodeObservation()

    def step(self, action: CodeAction, timeout_s: float | None = None, **kwargs: Any) -> CodeObservation:
        self._state.step_count += 1
        ran = self._executor.run(action.code)
        return CodeObservation(
            stdout=ran.stdout, stderr=ran.stderr, exit_code=ran.exit_code, reward=1.0 if ran.exit_code == 0 else 0.0
        )

    @property
    def state(self) -> State:
        return self._state


def mount(host: FastAPI, name: str, env: Any, action: Any, observation: Any, capacity: int = CAPACITY) -> None:
    """The app of `create_app`, with the number of its sessions."""
    app = FastAPI()
    server = HTTPEnvServer(env, action, observation, max_concurrent_envs=capacity)
    server.register_routes(app)
    app.get("/active")(lambda: server.active_sessions)
    host.mount(f"/{name}", app)


def hosted(scaffolds: str) -> FastAPI:
    """Every environment, that which `openenv init` wrote too."""
    sys.path.insert(0, scaffolds)
    from echo_env.models import EchoAction, EchoObservation  # noqa: PLC0415 - found on the path that was just added
    from echo_env.server.echo_env_environment import EchoEnvironment  # noqa: PLC0415 - as above

    host = FastAPI()
    mount(host, "echo", EchoEnvironment, EchoAction, EchoObservation)
    for name, env in (("odd", OddEnvironment), ("slow", SlowEnvironment), ("broken", BrokenEnvironment)):
        mount(host, name, env, OddAction, OddObservation)
    mount(host, "single", SingleEnvironment, OddAction, OddObservation, capacity=1)
    mount(host, "pair", OddEnvironment, OddAction, OddObservation, capacity=2)
    mount(host, "tools", ToolsEnvironment, Action, Observation)
    mount(host, "code", CodeEnvironment, CodeAction, CodeObservation)
    return host


if __name__ == "__main__":
    uvicorn.run(hosted(sys.argv[1]), port=int(sys.argv[2]), log_level="warning", ws_max_size=16 * 2**20)
