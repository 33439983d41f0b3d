"""A server of the released openenv with small environments, each under a path of its own: `python served_envs.py PORT`."""

import os
import sys
import threading
import time

import uvicorn
from fastapi import FastAPI, WebSocket
from fastmcp import FastMCP
from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class CountAction(Action):
    message: str


class CountObservation(Observation):
    message: str = ""


class Count(Environment):
    """Says how many steps there were; the message is a command."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State(episode_id="none", step_count=0)

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._state = State(episode_id=str(seed), step_count=0)
        told = "".join(f" {name}={value}" for name, value in sorted(kwargs.items()))
        return CountObservation(message=f"seed {seed}{told}", reward=None, done=False)

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        word, _, rest = action.message.partition(" ")
        if word == "sleep":
            time.sleep(float(rest))
        elif word == "raise":
            raise ValueError(rest)
        elif word == "die":
            os._exit(1)
        elif word == "big":
            return CountObservation(message="x" * int(rest), reward=0.0, done=False)
        elif word == "nan":
            return CountObservation(message="nan", reward=float("nan"), done=False)
        done = word == "end"
        reward = {"none": None, "end": 2.0}.get(word, 0.5)
        return CountObservation(
            message=f"obs-{self._state.step_count}", reward=reward, done=done, metadata={"note": word}
        )

    @property
    def state(self):
        return self._state


class Alone(Count):
    """Takes one session at a time."""

    SUPPORTS_CONCURRENT_SESSIONS = False


class Slow(Count):
    """Takes a while to be made."""

    def __init__(self):
        time.sleep(1.0)
        super().__init__()


class Unmade(Count):
    """Cannot be made."""

    def __init__(self):
        raise RuntimeError("no licence for this game")


class Adder(MCPEnvironment):
    """An MCP environment: its last tool scores and ends the episode."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("adder")

        @mcp.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        @mcp.tool
        def submit(answer: str) -> str:
            """Give the answer."""
            return f"you said {answer}"

        super().__init__(mcp)
        self._state = State(episode_id="none", step_count=0)

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._state = State(episode_id=str(seed), step_count=0)
        return Observation(reward=None, done=False, metadata={"task": "add 2 and 3"})

    def step(self, action, timeout_s=None, **kwargs):
        return self._scored(action, super().step(action, timeout_s=timeout_s, **kwargs))

    async def step_async(self, action, timeout_s=None, **kwargs):
        return self._scored(action, await super().step_async(action, timeout_s=timeout_s, **kwargs))

    def _scored(self, action, observation):
        if isinstance(action, CallToolAction):
            self._state.step_count += 1
            observation.reward = 0.25
            if action.tool_name == "submit":
                observation.reward = float(action.arguments.get("answer") == "5")
                observation.done = True
        return observation

    def _step_impl(self, action, timeout_s=None, **kwargs):
        raise ValueError("only tools")

    @property
    def state(self):
        return self._state


root = FastAPI()


def strange() -> FastAPI:
    """Sessions that no openenv server would hold: what the client must survive."""
    app = FastAPI()

    @app.websocket("/ws")
    async def session(socket: WebSocket) -> None:
        await socket.accept()
        while True:
            asked = await socket.receive_json()
            word = (asked.get("data") or {}).get("message", "")
            if asked["type"] == "close":
                return await socket.close()
            if asked["type"] == "state":
                await socket.send_text('{"type":"state","data":{}}')
            elif word == "not json":
                await socket.send_text("<html>")
            elif word == "nan":
                await socket.send_text('{"type":"observation","data":{"observation":{},"reward":NaN,"done":false}}')
            elif word == "twice":
                for number in (1, 2):
                    text = '{"type":"observation","data":{"observation":{"message":"%d"},"reward":0.0,"done":false}}'
                    await socket.send_text(text % number)
            elif word == "close":
                await socket.close(1001, "restarting")
                return None
            else:
                await socket.send_text('{"type":"observation","data":{"observation":"plain","reward":1,"done":false}}')

    return app


def mount(path: str, env: type, limit: int, action: type = CountAction, observation: type = CountObservation) -> None:
    app = create_app(env, action, observation, max_concurrent_envs=limit)
    holder = next(
        cell.cell_contents
        for route in app.routes
        if getattr(route, "path", "") == "/ws"
        for cell in route.endpoint.__closure__ or ()
        if hasattr(cell.cell_contents, "_sessions")
    )

    @app.get("/count")
    def count() -> dict:
        return {"sessions": len(holder._sessions)}

    root.mount(path, app)


mount("/count", Count, 600)
mount("/two", Count, 2)
mount("/alone", Alone, 1)
mount("/slow", Slow, 8)
mount("/unmade", Unmade, 8)
mount("/adder", Adder, 8, CallToolAction, CallToolObservation)
root.mount("/strange", strange())


@root.get("/ready")
def ready() -> dict:
    return {"ready": True}


def end_with_parent() -> None:
    sys.stdin.read()  # ends when the process that started this one does
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    uvicorn.run(root, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
