"""What OpenEnv sessions cost their client, against raw `websockets` and against the official client.

`python -m benchmarks.openenv [--rounds 5]` prints CPU-microseconds a step of this process, all threads, and as its
last line one JSON object. The environment does nearly nothing and is served by `tiltyard serve` in another process,
whose CPU is not counted. `raw` is `websockets` on one event loop with `orjson` on both ends of a frame and nothing
else; `awaited` is our session awaited on one loop; `threads` is `RemoteEnvClient` called from as many threads as there
are sessions; `official` is `openenv`'s own client with `.sync()`, one thread a session. Each figure is the median of
the rounds, and what is compared is measured in turns. `in_process_us` is what a step of an embedded OpenEnv
environment costs beyond the environment's own step; `open_over_raw` compares dialling and the first reset;
`threads_512` is by how many threads this process grew when it opened 512 sessions.
"""

# pyright: reportMissingImports=false
# openenv comes with an extra of its own; types are checked without it too.

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from websockets.asyncio.client import connect

from tiltyard import OpenEnv, RemoteEnvClient
from tiltyard.envs.openenv.connection import Connection
from tiltyard.envs.openenv.dialling import open_session
from tiltyard.envs.openenv.options import SessionOptions
from tiltyard.envs.openenv.wire import answer_data, encode, result_of

COUNTS = {1: 2000, 16: 200, 64: 50}
"""Steps of each session, by the number of sessions."""

SESSIONS = 512
ACTION = {"message": "north"}
Step = Callable[[], Any]


class Walk:
    """A text environment that does nearly nothing."""

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        del seed
        return "You stand at the gate.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return f"You went {action}.", 0.0, False, False, {}


async def raw_session(url: str) -> Any:
    socket = await connect(url, compression=None, proxy=None)
    await raw_ask(socket, "reset", {"seed": 1})
    return socket


async def raw_ask(socket: Any, kind: str, data: dict[str, Any]) -> dict[str, Any]:
    await socket.send(orjson.dumps({"type": kind, "data": data}), text=True)
    return orjson.loads(await socket.recv(decode=False))["data"]


async def our_session(url: str) -> Connection:
    connection, _ = await open_session(url, SessionOptions())
    await our_ask(connection, "reset", {"seed": 1})
    return connection


async def our_ask(connection: Connection, kind: str, data: dict[str, Any]) -> Any:
    return result_of(answer_data(await connection.request(encode(kind, data), 120.0), "observation"))


async def on_one_loop(
    opened: Callable[[], Awaitable[Any]], ask: Callable[..., Awaitable[Any]], sessions: int, steps: int
) -> float:
    """CPU-microseconds a step of sessions on this loop."""
    live = await asyncio.gather(*(opened() for _ in range(sessions)))

    async def play(session: Any, count: int) -> None:
        for _ in range(count):
            await ask(session, "step", ACTION)

    await asyncio.gather(*(play(session, 5) for session in live))
    began = time.process_time()
    await asyncio.gather(*(play(session, steps) for session in live))
    spent = time.process_time() - began
    await asyncio.gather(*(session.close() for session in live))
    return spent / (sessions * steps) * 1e6


def on_threads(opened: Callable[[], tuple[Step, Step]], sessions: int, steps: int) -> float:
    """CPU-microseconds a step of sessions that each have a thread; `opened` gives what steps and what closes one."""
    ready = threading.Barrier(sessions + 1)
    live = [opened() for _ in range(sessions)]

    def play(step: Step) -> None:
        for _ in range(5):
            step()
        ready.wait()
        ready.wait()
        for _ in range(steps):
            step()
        ready.wait()

    threads = [threading.Thread(target=play, args=(step,)) for step, _ in live]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.process_time()
    ready.wait()
    ready.wait()
    spent = time.process_time() - began
    for thread in threads:
        thread.join()
    for _, close in live:
        close()
    return spent / (sessions * steps) * 1e6


def remote(url: str) -> tuple[Step, Step]:
    client = RemoteEnvClient(url)
    client.reset(1)
    return lambda: client.step("north"), client.close


def official(url: str) -> tuple[Step, Step]:
    from openenv.core.generic_client import GenericEnvClient  # noqa: PLC0415  # takes seconds

    client: Any = GenericEnvClient(base_url=url).sync()
    client.connect()
    client.reset(seed=1)
    return lambda: client.step(ACTION), client.close


async def opening(opened: Callable[[], Awaitable[Any]], count: int = 100) -> float:
    """CPU-microseconds of dialling and the first reset."""
    began = time.process_time()
    live = [await opened() for _ in range(count)]
    spent = time.process_time() - began
    await asyncio.gather(*(session.close() for session in live))
    return spent / count * 1e6


def in_process(steps: int = 20_000) -> float:
    """CPU-microseconds of an embedded environment's step beyond the environment's own."""
    from openenv.core.env_server.interfaces import Environment  # noqa: PLC0415  # takes seconds
    from openenv.core.env_server.types import Action, Observation, State  # noqa: PLC0415  # as above

    class WalkAction(Action):
        message: str

    class WalkObservation(Observation):
        text: str = ""

    class WalkEnvironment(Environment):
        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> WalkObservation:
            return WalkObservation(text="You stand at the gate.")

        def step(self, action: WalkAction, timeout_s: float | None = None, **kwargs: Any) -> WalkObservation:
            return WalkObservation(text=f"You went {action.message}.", reward=0.0)

        @property
        def state(self) -> State:
            return State()

    bare = WalkEnvironment()
    bare.reset()
    embedded = OpenEnv(env_cls=WalkEnvironment, action_cls=WalkAction)
    embedded.reset()
    began = time.process_time()
    for _ in range(steps):
        bare.step(WalkAction(message="north"))
    alone = time.process_time() - began
    began = time.process_time()
    for _ in range(steps):
        embedded.step("walk", ACTION)
    return (time.process_time() - began - alone) / steps * 1e6


def grown_by(url: str) -> int:
    """How many threads this process has more with 512 open sessions than with one."""
    clients = [RemoteEnvClient(url) for _ in range(SESSIONS)]
    clients[0].reset(1)
    before = threading.active_count()
    for client in clients[1:]:
        client.reset(1)
    grown = threading.active_count() - before
    for client in clients:
        client.close()
    return grown


def measured(url: str, rounds: int) -> dict[str, list[float]]:
    """Every figure of every round, by its name."""
    ws = url.replace("http", "ws", 1) + "/ws"
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    for _ in range(rounds):
        for sessions, steps in COUNTS.items():
            note(f"raw_{sessions}", asyncio.run(on_one_loop(lambda: raw_session(ws), raw_ask, sessions, steps)))
            note(f"awaited_{sessions}", asyncio.run(on_one_loop(lambda: our_session(ws), our_ask, sessions, steps)))
            note(f"threads_{sessions}", on_threads(lambda: remote(url), sessions, steps))
        note("official_64", on_threads(lambda: official(url), 64, COUNTS[64]))
        note("open_raw", asyncio.run(opening(lambda: raw_session(ws))))
        note("open_ours", asyncio.run(opening(lambda: our_session(ws))))
        note("in_process_us", in_process())
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args(arguments).rounds
    warnings.simplefilter("ignore")
    command = [sys.executable, "-m", "tiltyard", "serve", f"{__file__}:Walk", "--port", "0"]
    server = subprocess.Popen([*command, "--max-concurrent-envs", str(SESSIONS)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = next(word for word in server.stdout.readline().split() if word.startswith("http"))
        official(url)[1]()  # its imports are not measured
        found = measured(url, rounds)
        grown = grown_by(url)
    finally:
        server.terminate()
        server.wait()
    for name, values in found.items():
        print(f"{name:14} {statistics.median(values):8.1f} us   ({min(values):.1f} to {max(values):.1f})")
    result = {name: round(value, 3) for name, value in ratios(found).items()}
    print(json.dumps({"benchmark": "openenv", **result, "threads_512": grown}))


def ratios(found: dict[str, list[float]]) -> dict[str, float]:
    """What is compared: the median of the rounds' ratios."""

    def over(ours: str, theirs: str) -> float:
        return statistics.median(a / b for a, b in zip(found[ours], found[theirs], strict=True))

    figures = {f"awaited_over_raw_{count}": over(f"awaited_{count}", f"raw_{count}") for count in COUNTS}
    figures |= {f"threads_over_raw_{count}": over(f"threads_{count}", f"raw_{count}") for count in COUNTS}
    figures["official_sync_over_ours_64"] = over("official_64", "threads_64")
    figures["in_process_us"] = statistics.median(found["in_process_us"])
    figures["open_over_raw"] = over("open_ours", "open_raw")
    return figures


if __name__ == "__main__":
    main()
