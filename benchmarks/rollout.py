"""What a rollout over a served model costs, beside a bare client and beside the plain way of writing one.

Run: python -m benchmarks.rollout

The server is a scripted one of ours on bare asyncio, in a process of its own; the figures are of the client's
process. The last line is one JSON object:

- `cpu_over_raw`: CPU-seconds a request of `ConcurrentRollout` over `OpenAI`, episodes and environments included, over
  those of a client on bare asyncio streams that only encodes, sends, reads and decodes (256 episodes x 4 turns).
- `cpu_100_over_2_messages`: the same of a turn that adds two messages to a conversation of 100, half of them with tool
  calls, over one of 2.
- `cpu_1024_over_64`: the same of a request in a run of 1,024 episodes, all live, over runs of 64.
- `wall_over_ideal`: 1,024 episodes x 3 turns at 1 s latency, all live, over the 3 s that they take at best.
- `plain_over_ideal`: the same episodes with the `openai` client and a thread for each.
- `heavy_tail_utilisation`: the time that 64 places are taken by an answer or a tool on its way, over all their time,
  with tools whose times are lognormal with sigma 1, and places refilled.
- `kb_per_waiting_episode`: growth of the resident memory over 1,024 episodes that all wait for an answer.
- `hang_over_timeout`: what a tool that hangs in the first turn of one of 64 episodes adds to the batch, over its
  time-out.
"""

import asyncio
import contextlib
import gc
import json
import multiprocessing
import os
import random
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from tiltyard.policies.openai import OpenAI
from tiltyard.rollout.concurrent import ConcurrentRollout
from tiltyard.rollout.jobs import Job
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.testing.openai_server import OpenAIServer
from tiltyard.types import Message, Prompt, Task

REPEATS = 5
PLAIN_BOUND_S = 100.0
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 0,
    "model": "scripted",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "I look around, and then I go north. " * 3},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 50, "completion_tokens": 27, "total_tokens": 77},
}


class Walk:
    """A text environment whose steps take as long as they are told."""

    def __init__(self, turns: int, step_s: Callable[[], float] = lambda: 0.0) -> None:
        self.turns = turns
        self.step_s = step_s
        self.slept_s = 0.0

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.turn = 0
        return "You stand at the gate.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        if (seconds := self.step_s()) > 0:
            time.sleep(seconds)
            self.slept_s += seconds
        return "You went north, and stand at a wall.", 0.5, self.turn >= self.turns, False, {}


def serve(pipe: Any, latency_s: float) -> None:
    """The server's process."""
    allow_many_connections()
    with OpenAIServer(json.dumps(ANSWER).encode(), latency_s=latency_s) as server:
        pipe.send(server.base_url)
        pipe.recv()


@contextlib.contextmanager
def server(latency_s: float) -> Iterator[str]:
    """A server in a process of its own; gives its address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, latency_s), daemon=True)
    process.start()
    yield ours.recv()
    ours.send(None)
    process.join()


def allow_many_connections() -> None:
    """Raise the number of open files to what the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def rollout(url: str, envs: list[Walk], concurrency: int, step_timeout_s: float = 300.0) -> list[Trajectory]:
    """One episode in each environment."""
    limits = Limits(max_turns=99, step_timeout_s=step_timeout_s)
    jobs = [Job(env, Task(seed=1), f"e{number}") for number, env in enumerate(envs)]
    return ConcurrentRollout(OpenAI("m", url, "none"), limits, concurrency=concurrency).run(jobs)


def cpu_us(work: Callable[[], Any], requests: int) -> float:
    """CPU-microseconds of this process for each request."""
    gc.collect()
    began = time.process_time()
    work()
    return (time.process_time() - began) / requests * 1e6


async def raw_client(url: str, episodes: int, turns: int) -> None:
    """The least that a client can do: the same requests on bare asyncio streams."""
    host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
    body = {"model": "m", "messages": [{"role": "user", "content": "You stand at the gate."}] * 4, "max_tokens": 256}

    async def play() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(turns):
            payload = orjson.dumps(body)
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(payload)}\r\n\r\n"
            writer.write(head.encode() + payload)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            orjson.loads(await reader.readexactly(length))
        writer.close()

    await asyncio.gather(*(play() for _ in range(episodes)))


def conversation(messages: int) -> list[Message]:
    """A conversation of so many messages, with a tool call in each answer."""
    said: list[Message] = [{"role": "user", "content": "You stand at the gate. Find the coin and bring it back."}]
    while len(said) < messages:
        number = len(said)
        function = {"name": "move", "arguments": f'{{"direction": "north", "steps": {number}}}'}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        said.append({"role": "assistant", "content": "I go north, to see what is there.", "tool_calls": [call]})
        result = "You went north, and stand at a wall with a door in it. It is locked."
        said.append({"role": "tool", "content": result, "tool_call_id": f"call_{number}", "name": "move"})
    return said[-messages:]


def cpu_us_of_replies(url: str, messages: int) -> float:
    """CPU-microseconds of a turn that adds two messages to a conversation, 64 of them at a time."""
    prompts = []
    for _ in range(64):
        said = conversation(messages)
        prompts.append(Prompt(said, said, memo={}))

    async def play(api: OpenAI, prompt: Prompt) -> None:
        await api.reply(prompt, max_tokens=256)
        assert isinstance(prompt.messages, list)
        prompt.messages.extend(conversation(3)[1:])

    async def turns() -> float:
        async with OpenAI("m", url, "none") as api:
            await asyncio.gather(*(play(api, prompt) for prompt in prompts))
            began = time.process_time()
            for _ in range(8):
                await asyncio.gather(*(play(api, prompt) for prompt in prompts))
            return (time.process_time() - began) / (8 * len(prompts)) * 1e6

    gc.collect()
    return asyncio.run(turns())


def cpu_figures() -> dict[str, float]:
    """What a request costs, by what else there is; medians of rounds that take turns."""
    rounds: dict[str, list[float]] = {}
    with server(0.02) as url:
        for _ in range(REPEATS + 1):
            measures = {
                "raw": cpu_us(lambda: asyncio.run(raw_client(url, 256, 4)), 1024),
                "ours": cpu_us(lambda: rollout(url, [Walk(4) for _ in range(256)], 256), 1024),
                "2": cpu_us_of_replies(url, 2),
                "100": cpu_us_of_replies(url, 100),
                "64": cpu_us(lambda: [rollout(url, [Walk(4) for _ in range(64)], 64) for _ in range(16)], 4096),
                "1024": cpu_us(lambda: rollout(url, [Walk(4) for _ in range(1024)], 1024), 4096),
            }
            for name, value in measures.items():
                rounds.setdefault(name, []).append(value)
    us = {name: statistics.median(values[1:]) for name, values in rounds.items()}  # the first round warms up
    print(f"CPU a request: raw {us['raw']:.0f} us, a rollout {us['ours']:.0f} us (target <= 8 x)")
    print(f"CPU a reply: {us['2']:.0f} us to 2 messages, {us['100']:.0f} us to 100 (target <= 1.5 x)")
    print(f"CPU a request: {us['64']:.0f} us with 64 episodes live, {us['1024']:.0f} us with 1,024 (target <= 1.5 x)")
    return {
        "cpu_over_raw": us["ours"] / us["raw"],
        "cpu_100_over_2_messages": us["100"] / us["2"],
        "cpu_1024_over_64": us["1024"] / us["64"],
    }


def wall_s(work: Callable[[], Any]) -> float:
    """Seconds by the clock."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def plainly(url: str, episodes: int, turns: int) -> float:
    """Seconds for the same with the `openai` client and a thread for each episode; infinite past the bound."""
    import openai  # noqa: PLC0415  # what is measured before it does not have it in memory

    client = openai.OpenAI(base_url=url, api_key="none")
    deadline = time.monotonic() + PLAIN_BOUND_S
    late = threading.Event()

    def play() -> None:
        env = Walk(turns)
        messages: list[Any] = [{"role": "user", "content": env.reset()[0]}]
        for _ in range(turns):
            if time.monotonic() > deadline:
                late.set()
                return
            answer = client.chat.completions.create(model="m", messages=messages, max_tokens=256)
            text = answer.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": text})
            messages.append({"role": "user", "content": env.step(text)[0]})

    def run() -> None:
        with ThreadPoolExecutor(episodes) as pool:
            for future in [pool.submit(play) for _ in range(episodes)]:
                future.result()

    seconds = wall_s(run)
    client.close()
    return float("inf") if late.is_set() else seconds


def wall_figures() -> dict[str, float]:
    """1,024 episodes of 3 turns at 1 s, in two ways."""
    ideal_s = 3.0
    with server(1.0) as url:
        ours_s = wall_s(lambda: rollout(url, [Walk(3) for _ in range(1024)], 1024))
        plain_s = min(plainly(url, 1024, 3), PLAIN_BOUND_S)
    print(f"1,024 episodes x 3 turns at 1 s: {ours_s:.2f} s (target <= {1.6 * ideal_s:g} s); plainly {plain_s:.1f} s")
    return {"wall_over_ideal": ours_s / ideal_s, "plain_over_ideal": plain_s / ideal_s}


def heavy_tail_figures() -> dict[str, float]:
    """64 places, 640 episodes of 4 turns, tools with a median of 100 ms and a heavy tail."""
    places, latency_s = 64, 0.1
    draw = random.Random(7)
    envs = [Walk(4, lambda: draw.lognormvariate(-2.303, 1.0)) for _ in range(places * 10)]
    with server(latency_s) as url:
        seconds = wall_s(lambda: rollout(url, envs, places))
    taken_s = sum(env.slept_s + 4 * latency_s for env in envs)
    utilisation = taken_s / (places * seconds)
    print(f"heavy-tailed tools: 64 places are taken {utilisation:.2f} of {seconds:.1f} s (target >= 0.8)")
    return {"heavy_tail_utilisation": utilisation}


def resident_kb() -> float:
    """What this process holds in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1024


def memory_figures() -> dict[str, float]:
    """1,024 episodes that wait for an answer of 4 s, looked at after 3.5."""
    seen: list[float] = []
    with server(4.0) as url:
        rollout(url, [Walk(1)], 1)
        gc.collect()
        before = resident_kb()
        look = threading.Timer(3.5, lambda: seen.append(resident_kb()))
        look.start()
        rollout(url, [Walk(1) for _ in range(1024)], 1024)
        look.join()
    kb = (seen[0] - before) / 1024
    print(f"memory: {kb:.1f} KB for each waiting episode (target <= 60)")
    return {"kb_per_waiting_episode": kb}


def hang_figures() -> dict[str, float]:
    """64 episodes of 4 turns at 0.5 s; in one of them the tool of the first turn never returns."""
    timeout_s = 2.0
    with server(0.5) as url:
        sound_s = wall_s(lambda: rollout(url, [Walk(4) for _ in range(64)], 64, timeout_s))
        envs = [Walk(4) for _ in range(63)]
        envs.append(Walk(4, lambda: 3600.0))
        hung_s = wall_s(lambda: rollout(url, envs, 64, timeout_s))
    added_s = hung_s - sound_s
    print(f"a tool that hangs in one of 64 episodes adds {added_s:.2f} s (target < its time-out of {timeout_s:g} s)")
    return {"hang_over_timeout": added_s / timeout_s}


def main() -> None:
    """Measure and print."""
    allow_many_connections()
    # Before anything else has grown the process.
    figures = memory_figures()
    for measure in (cpu_figures, heavy_tail_figures, hang_figures, wall_figures):
        figures |= measure()
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
