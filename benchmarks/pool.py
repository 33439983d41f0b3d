"""What a pool of environments costs, over worker processes and over Ray.

`python -m benchmarks.pool [--rounds 5] [--no-ray]` prints its figures, and as its last line one JSON object. All of it
is wall clock, what is compared is measured in turns, and each figure is the median of the rounds. Ray runs on this
machine, on the loopback address.

- `ray_batch64_over_single`: a step of 64 slots of one worker in one batch, over the same 64 steps one by one.
- `slot_beside_slow_over_idle`: a step of one slot while another worker's slot is in a step of 2 s, over the same when
  nothing else runs (the worse of the two backends).
- `workers8_over_1`: a step of one slot in a pool with 8 workers, over one in a pool with a single worker (Ray).
- `broadcast_over_ours_8`: the same step at 8 workers when every call goes to every worker and waits for all of them,
  over ours.
- `sweep_over_ideal`: a batch of 64 slots whose steps take 50 ms each, over 50 ms (the worse of the two backends).
- `process_over_pipe`: a step over a worker process, over a message to and from a process through a bare pipe.
- `killed_s`, `hung_s`, `rebuilt_s`: one of four workers is killed, or stopped, in the middle of a batch of 32: how late
  the batch came back, with 24 results and the eight slots of that worker in need of a reset (beyond the deadline for
  the one that was stopped), and how long the reset of the eight then took (the worst of both backends).
- `heavy_tail_utilisation`: whole episodes through `RolloutWorkers`, with steps whose times are lognormal with sigma 1:
  the time that 64 places are taken by an answer or a step on its way, over all their time (the worse of the two
  backends).
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from tiltyard import Env, EnvPool, ResetNeededError, StepResult
from tiltyard.rollout.jobs import EpisodeOrder
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.placement import Placement
from tiltyard.rollout.rollout_workers import RolloutWorkers
from tiltyard.testing.scripted import ScriptedAsyncPolicy
from tiltyard.types import Task

SLOTS = 64
SLOW_S = 2.0
STEP_S = 0.05
DEADLINE_S = 2.0
STEPS = {"process": 300, "ray": 100}
"""Steps in one measurement."""


class Walk(Env):
    """An environment that does nearly nothing, or takes as long as it is told to."""

    def step(self, tool_name: str, arguments: dict[str, Any]) -> StepResult:
        if tool_name == "wait":
            time.sleep(arguments["seconds"])
        return StepResult("You went north.")


def seconds(call: Callable[[], Any], times: int = 1) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times


def in_turns(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """The median of each, measured in turns."""
    found = [[measure() for measure in measures] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*found, strict=True)]


def pool(backend: str, slots: int, workers: int, **options: Any) -> EnvPool:
    return EnvPool(slots, env_factory=Walk, num_workers=workers, backend=backend, **options)  # pyright: ignore[reportArgumentType]  # one of the two


def step(of: EnvPool, slot: int) -> Callable[[], Any]:
    return lambda: of.step(slot, "go", {})


def sweep(of: EnvPool, tool: str = "go", arguments: dict[str, Any] | None = None) -> Callable[[], Any]:
    slots = range(of.pool_size)
    return lambda: of.step_batch(slots, [tool] * len(slots), [arguments or {}] * len(slots))


def batch_over_single(rounds: int) -> float:
    with pool("ray", SLOTS, 1) as envs:
        slots = range(SLOTS)
        singly = lambda: seconds(lambda: [envs.step(slot, "go", {}) for slot in slots])  # noqa: E731  # measured in turns
        batch, single = in_turns(rounds, lambda: seconds(sweep(envs), 5), singly)
    return batch / single


def beside_slow(backend: str, rounds: int) -> float:
    with pool(backend, 2, 2) as envs:
        times = STEPS[backend]
        step(envs, 0)()

        def idle() -> float:
            return seconds(step(envs, 0), times)

        def beside() -> float:
            slow = threading.Thread(target=envs.step, args=(1, "wait", {"seconds": SLOW_S}))
            slow.start()
            time.sleep(0.1)
            taken = seconds(step(envs, 0), times)
            assert slow.is_alive()
            slow.join()
            return taken

        alone, loaded = in_turns(rounds, idle, beside)
    return loaded / alone


def routed(rounds: int) -> dict[str, float]:
    """A step at 8 workers over one at a single worker, and over the way of asking every worker."""
    with pool("ray", 8, 8) as many, pool("ray", 8, 1) as one:
        times = STEPS["ray"]
        everyone = sweep(many)  # a slot on each worker: every worker is asked, and all are waited for
        for warm in (step(many, 0), step(one, 0), everyone):
            seconds(warm, 20)
        eight, single, broadcast = in_turns(
            rounds,
            lambda: seconds(step(many, 0), times),
            lambda: seconds(step(one, 0), times),
            lambda: seconds(everyone, times),
        )
    print(f"ray: a step {eight * 1e6:.0f} us at 8 workers, {single * 1e6:.0f} at 1, {broadcast * 1e6:.0f} asking all 8")
    return {"workers8_over_1": eight / single, "broadcast_over_ours_8": broadcast / eight}


def sweep_over_ideal(backend: str, rounds: int) -> float:
    with pool(backend, SLOTS, 4) as envs:
        sweep(envs)()
        [taken] = in_turns(rounds, lambda: seconds(sweep(envs, "wait", {"seconds": STEP_S}), 4))
    return taken / STEP_S


def echo(pipe: Any) -> None:
    while (said := pipe.recv()) is not None:
        pipe.send(said)


def process_over_pipe(rounds: int) -> float:
    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(target=echo, args=(theirs,), daemon=True)
    other.start()

    def ask() -> Any:
        ours.send(("go", {}))
        return ours.recv()

    with pool("process", 1, 1) as envs:
        for warm in (step(envs, 0), ask):
            seconds(warm, 100)
        times = STEPS["process"]
        ours_s, pipe_s = in_turns(4 * rounds, lambda: seconds(step(envs, 0), times), lambda: seconds(ask, times))
    ours.send(None)
    other.join()
    print(f"process: a step {ours_s * 1e6:.0f} us, a bare pipe {pipe_s * 1e6:.0f} us")
    return ours_s / pipe_s


def lost_worker(backend: str, number: signal.Signals) -> dict[str, float]:
    """Send a signal to one of four workers in the middle of a batch of 32 steps of half a second."""
    with pool(backend, 32, 4, step_timeout_s=DEADLINE_S) as envs:
        envs.reset_batch(range(32))
        sent: list[float] = []

        def strike() -> None:
            pid = envs.workers[1].pid
            assert pid is not None
            sent.append(time.perf_counter())
            os.kill(pid, number)

        threading.Timer(0.2, strike).start()
        began = time.perf_counter()
        results = envs.step_batch(range(32), ["wait"] * 32, [{"seconds": 0.5}] * 32)
        told = time.perf_counter()
        failed = [slot for slot, result in enumerate(results) if isinstance(result, ResetNeededError)]
        assert failed == list(range(8, 16)), f"exactly the eight slots of worker 1, got {failed}"
        assert sum(isinstance(result, StepResult) for result in results) == 24
        again = time.perf_counter()
        assert all(isinstance(result, StepResult) for result in envs.reset_batch(range(8, 16)))
        rebuilt = time.perf_counter() - again
    # The 24 others take half a second in any case; what is told later than that is told late.
    late = told - max(sent[0], began + 0.5) if number == signal.SIGKILL else told - began - DEADLINE_S
    return {"late": late, "rebuilt": rebuilt}


class Tail:
    """A text environment of four steps; each takes as long as a heavy-tailed draw says, with a median of 100 ms."""

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.left = draws(seed or 0)
        return "Go on.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(self.left.pop())
        return "Go on.", 0.0, not self.left, False, {}


def draws(seed: int) -> list[float]:
    draw = random.Random(seed)
    return [draw.lognormvariate(-2.303, 1.0) for _ in range(4)]


def heavy_tail(backend: str) -> float:
    """64 places on 4 workers, 640 episodes of 4 turns, answers of 100 ms."""
    places, episodes, latency_s = 64, 640, 0.1
    policy = ScriptedAsyncPolicy(["north"] * 4, latency_s=latency_s)
    placement = Placement(backend, 4)  # pyright: ignore[reportArgumentType]  # one of the two
    orders = [EpisodeOrder(Task(seed=seed), str(seed)) for seed in range(episodes)]
    with RolloutWorkers(Tail, policy, Limits(max_turns=4), placement=placement, concurrency=places) as workers:
        workers.run(orders[:places])
        wall_s = seconds(lambda: workers.run(orders))
    return sum(sum(draws(seed)) + 4 * latency_s for seed in range(episodes)) / (places * wall_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-ray", action="store_true", help="measure the process backend only")
    given = parser.parse_args()
    backends = ("process",) if given.no_ray else ("process", "ray")
    figures: dict[str, float] = {"process_over_pipe": process_over_pipe(given.rounds)}
    figures["slot_beside_slow_over_idle"] = worst(backends, lambda backend: beside_slow(backend, min(given.rounds, 3)))
    figures["sweep_over_ideal"] = worst(backends, lambda backend: sweep_over_ideal(backend, given.rounds))
    if not given.no_ray:
        figures["ray_batch64_over_single"] = batch_over_single(given.rounds)
        figures |= routed(given.rounds)
    killed = [lost_worker(backend, signal.SIGKILL) for backend in backends]
    hung = [lost_worker(backend, signal.SIGSTOP) for backend in backends]
    figures["killed_s"] = max(one["late"] for one in killed)
    figures["hung_s"] = max(one["late"] for one in hung)
    figures["rebuilt_s"] = max(one["rebuilt"] for one in (*killed, *hung))
    tails = {backend: heavy_tail(backend) for backend in backends}
    print(f"heavy-tailed episodes: {tails}")
    figures["heavy_tail_utilisation"] = min(tails.values())
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


def worst(backends: tuple[str, ...], measure: Callable[[str], float]) -> float:
    found = {backend: measure(backend) for backend in backends}
    print({backend: round(value, 3) for backend, value in found.items()})
    return max(found.values())


if __name__ == "__main__":
    main()
